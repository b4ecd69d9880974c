// Hugging Face's names of GPT-2's tensors beside ours, as data, and what a configuration makes of
// them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace mt {

// A size of the model, or none.
enum class Size : std::uint8_t { kNone, kHidden, kFfn, kVocab, kPositions };

// How their tensor becomes ours.
enum class Form : std::uint8_t {
  kVector,      // [rows]
  kSame,        // [rows, columns]
  kTransposed,  // theirs [columns, parts * rows], ours [rows, columns]
};

struct TensorName {
  const char* ours;
  const char* theirs;
  Form form;
  Size rows;  // of ours
  Size columns = Size::kNone;
  std::int64_t part = 0;  // which of the blocks of `rows` that stand side by side in theirs
  std::int64_t parts = 1;
};

// Without the prefix "transformer.", which files of the bare model lack.
inline constexpr std::array kGpt2Ends{
    TensorName{"embedding.word_embeddings.weight", "wte.weight", Form::kSame, Size::kVocab,
               Size::kHidden},
    TensorName{"embedding.position_embeddings.weight", "wpe.weight", Form::kSame, Size::kPositions,
               Size::kHidden},
    TensorName{"final_layernorm.weight", "ln_f.weight", Form::kVector, Size::kHidden},
    TensorName{"final_layernorm.bias", "ln_f.bias", Form::kVector, Size::kHidden},
};

// After "layers.N." here and "h.N." there.
inline constexpr std::array kGpt2Layer{
    TensorName{"input_layernorm.weight", "ln_1.weight", Form::kVector, Size::kHidden},
    TensorName{"input_layernorm.bias", "ln_1.bias", Form::kVector, Size::kHidden},
    TensorName{"self_attention.query.weight", "attn.c_attn.weight", Form::kTransposed,
               Size::kHidden, Size::kHidden, 0, 3},
    TensorName{"self_attention.query.bias", "attn.c_attn.bias", Form::kVector, Size::kHidden,
               Size::kNone, 0, 3},
    TensorName{"self_attention.key.weight", "attn.c_attn.weight", Form::kTransposed, Size::kHidden,
               Size::kHidden, 1, 3},
    TensorName{"self_attention.key.bias", "attn.c_attn.bias", Form::kVector, Size::kHidden,
               Size::kNone, 1, 3},
    TensorName{"self_attention.value.weight", "attn.c_attn.weight", Form::kTransposed,
               Size::kHidden, Size::kHidden, 2, 3},
    TensorName{"self_attention.value.bias", "attn.c_attn.bias", Form::kVector, Size::kHidden,
               Size::kNone, 2, 3},
    TensorName{"self_attention.dense.weight", "attn.c_proj.weight", Form::kTransposed,
               Size::kHidden, Size::kHidden},
    TensorName{"self_attention.dense.bias", "attn.c_proj.bias", Form::kVector, Size::kHidden},
    TensorName{"post_attention_layernorm.weight", "ln_2.weight", Form::kVector, Size::kHidden},
    TensorName{"post_attention_layernorm.bias", "ln_2.bias", Form::kVector, Size::kHidden},
    TensorName{"mlp.dense_h_to_4h.weight", "mlp.c_fc.weight", Form::kTransposed, Size::kFfn,
               Size::kHidden},
    TensorName{"mlp.dense_h_to_4h.bias", "mlp.c_fc.bias", Form::kVector, Size::kFfn},
    TensorName{"mlp.dense_4h_to_h.weight", "mlp.c_proj.weight", Form::kTransposed, Size::kHidden,
               Size::kFfn},
    TensorName{"mlp.dense_4h_to_h.bias", "mlp.c_proj.bias", Form::kVector, Size::kHidden},
};

// The head, when it is not the word embedding; never prefixed.
inline constexpr TensorName kGpt2Head{"output_layer.weight", "lm_head.weight", Form::kSame,
                                      Size::kVocab, Size::kHidden};

// Old files hold the causal mask as tensors of each layer, which are not parameters.
inline constexpr std::array kGpt2MaskBuffers{"attn.bias", "attn.masked_bias"};

// A tensor of ours and where it lies in theirs.
struct NamedTensor {
  const TensorName* name = nullptr;
  std::string ours, theirs;
};
// All tensors of the model, theirs with the prefix ("transformer." or ""); parts of one tensor of
// theirs follow each other in their order.
[[nodiscard]] std::vector<NamedTensor> gpt2_tensors(const ModelConfig& config,
                                                    const std::string& prefix);
[[nodiscard]] std::string gpt2_layer_name(const std::string& prefix, std::int64_t layer,
                                          const char* rest);
[[nodiscard]] std::int64_t size_of(Size which, const ModelConfig& config);
[[nodiscard]] Shape our_shape(const TensorName& name, const ModelConfig& config);
[[nodiscard]] Shape their_shape(const TensorName& name, const ModelConfig& config);

}  // namespace mt
