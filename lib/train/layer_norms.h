// Norms of weights and gradients a layer, for who watches a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/square_sum.h"
#include "train/gradient_sync.h"

namespace mt {

struct LayerNormsOptions {
  bool norms = false;  // --log-params-norm
  bool zeros = false;  // --log-num-zeros-in-grad
  [[nodiscard]] bool any() const { return norms || zeros; }
};

struct LayerNorms {
  std::string layer;  // "layers.3", or a name outside the layers up to its last dot
  SquareSum weight_squares = {}, gradient_squares = {};
  std::int64_t gradient_zeros = 0, elements = 0;
};

// Of all layers of the model, each element counted once, the same on every rank, in the order in
// which ranks first have them. Only what `options` ask for is computed. After sync.finish().
// Collective over sync.group().
[[nodiscard]] std::vector<LayerNorms> layer_norms(const GradientSync& sync,
                                                  const LayerNormsOptions& options);

// The keys params_norm, layer_params_norm, layer_grad_norm, num_zeros_in_grad and
// layer_num_zeros_in_grad of a line of metrics, those that were asked for.
void add_layer_norms(const std::vector<LayerNorms>& layers, const LayerNormsOptions& options,
                     Json& line);
// The sums over all layers for a line of the log, beginning with a comma, or "".
[[nodiscard]] std::string layer_norms_text(const std::vector<LayerNorms>& layers,
                                           const LayerNormsOptions& options);

}  // namespace mt
