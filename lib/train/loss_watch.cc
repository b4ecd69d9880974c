#include "train/loss_watch.h"

#include <algorithm>
#include <cmath>

namespace mt {

bool LossWatch::is_spike(double loss) {
  if (sigmas_ == 0) return false;
  constexpr double kKeepMean = 0.95, kKeepSquare = 0.98, kLeastDeviation = 0.02;
  constexpr std::int64_t kWarmUp = 10;
  shown_mean_ = mean_;
  shown_deviation_ = std::max(std::sqrt(2 * mean_square_), kLeastDeviation * std::abs(mean_));
  const double most = mean_ + sigmas_ * shown_deviation_;
  const bool spike = losses_ >= kWarmUp && loss > most;
  const double above = (spike ? most : loss) - mean_;
  if (losses_ > 0) {  // the first has no mean before it
    const double square = std::max(above, 0.0) * std::max(above, 0.0);
    square_weight_ = kKeepSquare * square_weight_ + 1;
    mean_square_ += (square - mean_square_) / square_weight_;
  }
  mean_weight_ = kKeepMean * mean_weight_ + 1;
  mean_ += above / mean_weight_;
  ++losses_;
  return spike;
}

}  // namespace mt
