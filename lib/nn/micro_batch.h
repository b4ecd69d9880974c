// What the layers need of a micro-batch besides activations, on the device.
#pragma once

#include "base/philox.h"
#include "tensor/tensor.h"

namespace mt {

struct MicroBatch {
  std::uint32_t dropout_seed = 0;
  Tensor samples;  // u8 [b, 8], the int64 global numbers of the samples; undefined: no dropout
  // Of what lies between the layers: its position 0 inside the sample (sequence parallelism).
  std::int64_t first_position = 0;
  Tensor first_key;  // i32 [b, s]; undefined: attention to all earlier positions

  // The dropout of one place; probability 0 when the micro-batch has none.
  [[nodiscard]] Dropout dropout(double probability, std::int64_t layer, DropoutSite site) const {
    if (!samples.defined()) return {};
    return {.probability = static_cast<float>(probability),
            .seed = dropout_seed,
            .layer = static_cast<std::uint32_t>(layer),
            .site = static_cast<std::uint32_t>(site),
            .samples = samples.as<std::int64_t>(),
            .first_row = first_position};
  }
};

}  // namespace mt
