#include "train/layer_norms.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
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

std::vector<LayerNorms> layer_norms(const std::vector<Parameter*>& parameters,
                                    const LayerNormsOptions& options) {
  std::vector<LayerNorms> layers;
  std::vector<float> host;
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) {
      MT_ASSERT(segment.extent == segment.global_shape);
      const std::string name = layer_of(segment.name);
      auto at = std::find_if(layers.begin(), layers.end(),
                             [&](const LayerNorms& layer) { return layer.layer == name; });
      if (at == layers.end()) at = layers.insert(at, LayerNorms{.layer = name});
      const Tensor gradient = segment_rows(parameter->grad, segment);
      at->elements += gradient.size();
      if (options.norms) {
        at->weight_squares.add(segment_rows(parameter->value, segment));
        at->gradient_squares.add(gradient);
      }
      if (options.zeros) at->gradient_zeros += count_zeros(gradient, host);
    }
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
