// Notices a loss that stands out from those before it.
#pragma once

#include <cstdint>

namespace mt {

// The mean runs over about the last 20 losses (each weighs 0.95 of the next), the deviation over
// about 50 and only over what lay above the mean of its time, its squares counted twice, so that a
// loss that falls steeply has no large one. A loss is a spike if it lies more than `sigmas`
// deviations above the mean, the deviation taken as at least 2 % of the mean; the first 10 losses
// never are. A spike enters as what just would be none, so that it hides few that follow it. The
// state is not kept in checkpoints.
class LossWatch {
 public:
  explicit LossWatch(double sigmas) : sigmas_(sigmas) {}  // 0: nothing is a spike
  // Of a finite loss, which is then taken in; mean() and deviation() stay those before it until the
  // next call.
  [[nodiscard]] bool is_spike(double loss);
  [[nodiscard]] double mean() const { return shown_mean_; }
  [[nodiscard]] double deviation() const { return shown_deviation_; }

 private:
  double sigmas_;
  double mean_weight_ = 0, mean_ = 0;
  double square_weight_ = 0, mean_square_ = 0;  // of what lay above
  double shown_mean_ = 0, shown_deviation_ = 0;
  std::int64_t losses_ = 0;
};

}  // namespace mt
