#include "golden_file.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace mt {
namespace {

// A part of one of Hugging Face's tensors.
struct Source {
  std::string name;
  bool transposed = false;  // Conv1D weights are [in, out]
  std::int64_t third = -1;  // c_attn holds query, key and value side by side
};

bool take_prefix(std::string& text, const std::string& prefix) {
  if (text.rfind(prefix, 0) != 0) return false;
  text.erase(0, prefix.size());
  return true;
}

Source source_of(const std::string& ours) {
  const auto ends_in_weight = [](const std::string& name) { return name == "weight"; };
  std::string rest = ours;
  if (rest == "embedding.word_embeddings.weight") return {.name = "transformer.wte.weight"};
  if (rest == "embedding.position_embeddings.weight") return {.name = "transformer.wpe.weight"};
  if (take_prefix(rest, "final_layernorm.")) return {.name = "transformer.ln_f." + rest};
  if (!take_prefix(rest, "layers.")) throw DataError("no golden numbers for " + ours);
  const std::size_t dot = rest.find('.');
  const std::string layer = "transformer.h." + rest.substr(0, dot) + ".";
  rest.erase(0, dot + 1);
  if (take_prefix(rest, "input_layernorm.")) return {.name = layer + "ln_1." + rest};
  if (take_prefix(rest, "post_attention_layernorm.")) return {.name = layer + "ln_2." + rest};
  const std::pair<const char*, const char*> products[] = {
      {"self_attention.query.", "attn.c_attn."}, {"self_attention.key.", "attn.c_attn."},
      {"self_attention.value.", "attn.c_attn."}, {"self_attention.dense.", "attn.c_proj."},
      {"mlp.dense_h_to_4h.", "mlp.c_fc."},       {"mlp.dense_4h_to_h.", "mlp.c_proj."}};
  for (std::int64_t i = 0; i < 6; ++i) {
    if (!take_prefix(rest, products[i].first)) continue;
    return {.name = layer + products[i].second + rest,
            .transposed = ends_in_weight(rest),
            .third = i < 3 ? i : -1};
  }
  throw DataError("no golden numbers for " + ours);
}

}  // namespace

GoldenFile::GoldenFile(const std::string& path)
    : reader_(path), windows_(reader_.shape("/tokens")) {
  if (windows_.size() != 3) throw DataError(path + ": /tokens has not three dimensions");
  const Json model = parse_json(reader_.text_attribute("/", "config"), path + ": config");
  config_.num_layers = json_int(model, "n_layer", path);
  config_.hidden_size = json_int(model, "n_embd", path);
  config_.num_attention_heads = json_int(model, "n_head", path);
  config_.ffn_hidden_size = model.at("n_inner").is_null() ? 0 : json_int(model, "n_inner", path);
  config_.max_position_embeddings = json_int(model, "n_positions", path);
  config_.vocab_size = json_int(model, "vocab_size", path);
  config_.layernorm_epsilon = json_number(model, "layer_norm_epsilon", path);
  config_.hidden_dropout = 0;
  config_.attention_dropout = 0;
  config_.check();

  const Json hyper = parse_json(reader_.text_attribute("/", "hyper"), path + ": hyper");
  adam_.adam_beta1 = json_number(hyper, "beta1", path);
  adam_.adam_beta2 = json_number(hyper, "beta2", path);
  adam_.adam_eps = json_number(hyper, "eps", path);
  adam_.weight_decay = json_number(hyper, "weight_decay", path);
  adam_.clip_grad = json_number(hyper, "clip_grad", path);
  schedule_.lr = json_number(hyper, "lr", path);
  schedule_.min_lr = json_number(hyper, "min_lr", path);
  schedule_.lr_decay_style = "cosine";
  schedule_.warmup.iters = json_int(hyper, "warmup", path);
  schedule_.decay.iters = json_int(hyper, "decay", path);
  schedule_.check(steps());
}

std::vector<std::int32_t> GoldenFile::tokens(std::int64_t step) const {
  const std::vector<std::int32_t> all = reader_.read<std::int32_t>("/tokens");
  const std::int64_t count = windows_[1] * windows_[2];
  return {all.begin() + step * count, all.begin() + (step + 1) * count};
}

std::vector<float> GoldenFile::tensor(const std::string& group, const Segment& segment) const {
  const Source source = source_of(segment.name);
  const std::string name = "/" + group + "/" + source.name;
  const std::vector<float> theirs = reader_.read<float>(name);
  const Shape& shape = segment.global_shape;
  const std::int64_t out = shape[0], in = shape.size() == 2 ? shape[1] : 1;
  const std::int64_t columns = source.third >= 0 ? 3 * out : out;  // of theirs, as [in, out]
  if (static_cast<std::int64_t>(theirs.size()) != in * columns) {
    throw DataError(cat(name, ": ", theirs.size(), " numbers for ", shape_text(shape)));
  }
  if (!source.transposed && source.third < 0) return theirs;
  const std::int64_t first = std::max<std::int64_t>(source.third, 0) * out;
  std::vector<float> ours(static_cast<std::size_t>(out * in));
  for (std::int64_t i = 0; i < out; ++i) {
    for (std::int64_t j = 0; j < in; ++j) {
      ours[static_cast<std::size_t>(i * in + j)] =
          theirs[static_cast<std::size_t>(j * columns + first + i)];
    }
  }
  return ours;
}

double GoldenFile::number(const std::string& name) const {
  return reader_.read<double>("/" + name).at(0);
}

}  // namespace mt
