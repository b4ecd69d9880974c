#include "convert/hugging_face_names.h"

#include <string_view>

#include "base/log.h"

namespace mt {

std::int64_t size_of(Size which, const ModelConfig& config) {
  switch (which) {
    case Size::kHidden:
      return config.hidden_size;
    case Size::kFfn:
      return config.ffn_hidden_size;
    case Size::kVocab:
      return config.vocab_size;
    case Size::kPositions:
      return config.max_position_embeddings;
    case Size::kNone:
      break;
  }
  return 1;
}

Shape our_shape(const TensorName& name, const ModelConfig& config) {
  if (name.form == Form::kVector) return {size_of(name.rows, config)};
  return {size_of(name.rows, config), size_of(name.columns, config)};
}

Shape their_shape(const TensorName& name, const ModelConfig& config) {
  const std::int64_t rows = size_of(name.rows, config), columns = size_of(name.columns, config);
  if (name.form == Form::kVector) return {name.parts * rows};
  if (name.form == Form::kSame) return {rows, columns};
  return {columns, name.parts * rows};
}

std::string gpt2_layer_name(const std::string& prefix, std::int64_t layer, const char* rest) {
  return cat(prefix, "h.", layer, ".", rest);
}

std::vector<NamedTensor> gpt2_tensors(const ModelConfig& config, const std::string& prefix) {
  std::vector<NamedTensor> out;
  for (const TensorName& name : kGpt2Ends) out.push_back({&name, name.ours, prefix + name.theirs});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const TensorName& first : kGpt2Layer) {
      // The weights of query, key and value are one tensor there, their biases another.
      if (first.part != 0) continue;
      for (const TensorName& name : kGpt2Layer) {
        if (std::string_view(name.theirs) != first.theirs) continue;
        out.push_back({&name, cat("layers.", layer, ".", name.ours),
                       gpt2_layer_name(prefix, layer, name.theirs)});
      }
    }
  }
  if (config.untie_embeddings_and_output_weights) {
    out.push_back({&kGpt2Head, kGpt2Head.ours, kGpt2Head.theirs});
  }
  return out;
}

}  // namespace mt
