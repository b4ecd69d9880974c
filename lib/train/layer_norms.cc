#include "train/layer_norms.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "comm/texts.h"
#include "tensor/ops.h"

namespace mt {

namespace {

// "layers.3.attention.query.weight": "layers.3"; "final_norm.bias": "final_norm".
std::string layer_of(const std::string& name) {
  const std::size_t first = name.find('.');
  if (name.rfind("layers.", 0) == 0) return name.substr(0, name.find('.', first + 1));
  return name.substr(0, name.rfind('.'));
}

std::int64_t count_zeros(const Tensor& values, std::vector<float>& host) {
  host.resize(static_cast<std::size_t>(values.size()));
  copy_to_host(values, host.data());
  return std::count(host.begin(), host.end(), 0.0F);
}

double total(const std::vector<LayerNorms>& layers, SquareSum LayerNorms::*squares) {
  SquareSum sum;
  for (const LayerNorms& layer : layers) sum.add(layer.*squares);
  return std::sqrt(sum.value());
}

std::int64_t total_zeros(const std::vector<LayerNorms>& layers) {
  std::int64_t sum = 0;
  for (const LayerNorms& layer : layers) sum += layer.gradient_zeros;
  return sum;
}

}  // namespace

std::vector<LayerNorms> layer_norms(const GradientSync& sync, const LayerNormsOptions& options) {
  std::vector<LayerNorms> layers;
  const auto layer = [&](const std::string& name) -> LayerNorms& {
    const auto at = std::find_if(layers.begin(), layers.end(),
                                 [&](const LayerNorms& each) { return each.layer == name; });
    return at != layers.end() ? *at : layers.emplace_back(LayerNorms{.layer = name});
  };
  std::string names;
  for (const Parameter* parameter : sync.parameters()) {
    for (const Segment& segment : parameter->segments) names += layer_of(segment.name) + "\n";
  }
  for (const std::string& each : gather_texts(sync.group(), names)) {
    for (std::size_t begin = 0, end = 0; begin < each.size(); begin = end + 1) {
      end = each.find('\n', begin);
      static_cast<void>(layer(each.substr(begin, end - begin)));
    }
  }
  std::vector<float> host;
  for (const auto& [segment, gradient, weights] : sync.counted()) {
    LayerNorms& at = layer(layer_of(segment->name));
    at.elements += gradient.size();
    if (options.norms) {
      at.weight_squares.add(weights);
      at.gradient_squares.add(gradient);
    }
    if (options.zeros) at.gradient_zeros += count_zeros(gradient, host);
  }
  for (LayerNorms& each : layers) {
    sum_over(sync.group(), each.weight_squares);
    sum_over(sync.group(), each.gradient_squares);
    double counts[] = {static_cast<double>(each.gradient_zeros),
                       static_cast<double>(each.elements)};
    sync.group().all_reduce(counts, 2, ReduceOp::kSum);
    each.gradient_zeros = static_cast<std::int64_t>(counts[0]);
    each.elements = static_cast<std::int64_t>(counts[1]);
  }
  return layers;
}

void add_layer_norms(const std::vector<LayerNorms>& layers, const LayerNormsOptions& options,
                     Json& line) {
  if (options.norms) {
    line["params_norm"] = total(layers, &LayerNorms::weight_squares);
    for (const LayerNorms& layer : layers) {
      line["layer_params_norm"][layer.layer] = std::sqrt(layer.weight_squares.value());
      line["layer_grad_norm"][layer.layer] = std::sqrt(layer.gradient_squares.value());
    }
  }
  if (options.zeros) {
    line["num_zeros_in_grad"] = total_zeros(layers);
    for (const LayerNorms& layer : layers) {
      line["layer_num_zeros_in_grad"][layer.layer] = layer.gradient_zeros;
    }
  }
}

std::string layer_norms_text(const std::vector<LayerNorms>& layers,
                             const LayerNormsOptions& options) {
  std::string text;
  if (options.norms) text += cat(", weight norm ", total(layers, &LayerNorms::weight_squares));
  if (options.zeros) text += cat(", ", total_zeros(layers), " zeros in gradients");
  return text;
}

}  // namespace mt
