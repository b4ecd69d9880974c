// Norms of weights and gradients a layer, for who watches a run. All tensors are whole: nothing is
// reduced over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/parameter.h"
#include "tensor/square_sum.h"

namespace mt {

struct LayerNormsOptions {
  bool norms = false;  // --log-params-norm
  bool zeros = false;  // --log-num-zeros-in-grad
  [[nodiscard]] bool any() const { return norms || zeros; }
};

struct LayerNorms {
  std::string layer;  // "layers.3", or a name outside the layers up to its last dot
  SquareSum weight_squares, gradient_squares;
  std::int64_t gradient_zeros = 0, elements = 0;
};

// In the order in which the layers first appear. Only what `options` ask for is computed.
[[nodiscard]] std::vector<LayerNorms> layer_norms(const std::vector<Parameter*>& parameters,
                                                  const LayerNormsOptions& options);

// The keys params_norm, layer_params_norm, layer_grad_norm, num_zeros_in_grad and
// layer_num_zeros_in_grad of a line of metrics, those that were asked for.
void add_layer_norms(const std::vector<LayerNorms>& layers, const LayerNormsOptions& options,
                     Json& line);
// The sums over all layers for a line of the log, beginning with a comma, or "".
[[nodiscard]] std::string layer_norms_text(const std::vector<LayerNorms>& layers,
                                           const LayerNormsOptions& options);

}  // namespace mt
