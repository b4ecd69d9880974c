// The names of GPT-2's tensors in GGUF (ggml-org/llama.cpp, gguf-py/gguf/constants.py,
// MODEL_ARCH.GPT2), as data, beside ours. The layers' rows stand in the order in which llm.c
// (karpathy/llm.c, train_gpt2.c) stores the kinds.
#pragma once

#include <array>

namespace mt {

// A tensor there and the neighbours of ours that it consists of, as they stand, row after row.
struct StackedName {
  const char* gguf;
  std::array<const char*, 3> ours;  // null where there are fewer
};

inline constexpr std::array kStackedFirst{
    StackedName{"token_embd.weight", {"embedding.word_embeddings.weight"}},
    StackedName{"position_embd.weight", {"embedding.position_embeddings.weight"}},
};
// After "blk.N." there and "layers.N." here.
inline constexpr std::array kStackedLayer{
    StackedName{"attn_norm.weight", {"input_layernorm.weight"}},
    StackedName{"attn_norm.bias", {"input_layernorm.bias"}},
    StackedName{"attn_qkv.weight",
                {"self_attention.query.weight", "self_attention.key.weight",
                 "self_attention.value.weight"}},
    StackedName{
        "attn_qkv.bias",
        {"self_attention.query.bias", "self_attention.key.bias", "self_attention.value.bias"}},
    StackedName{"attn_output.weight", {"self_attention.dense.weight"}},
    StackedName{"attn_output.bias", {"self_attention.dense.bias"}},
    StackedName{"ffn_norm.weight", {"post_attention_layernorm.weight"}},
    StackedName{"ffn_norm.bias", {"post_attention_layernorm.bias"}},
    StackedName{"ffn_up.weight", {"mlp.dense_h_to_4h.weight"}},
    StackedName{"ffn_up.bias", {"mlp.dense_h_to_4h.bias"}},
    StackedName{"ffn_down.weight", {"mlp.dense_4h_to_h.weight"}},
    StackedName{"ffn_down.bias", {"mlp.dense_4h_to_h.bias"}},
};
inline constexpr std::array kStackedLast{
    StackedName{"output_norm.weight", {"final_layernorm.weight"}},
    StackedName{"output_norm.bias", {"final_layernorm.bias"}},
};
// Where the head is not the word embedding.
inline constexpr StackedName kStackedHead{"output.weight", {"output_layer.weight"}};

}  // namespace mt
