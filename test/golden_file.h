// A file of golden numbers for a GPT, as the project's golden scripts write it (Hugging Face's
// names and layouts), seen under our names and layouts.
#pragma once

#include <string>
#include <vector>

#include "io/hdf5.h"
#include "model/config.h"
#include "optim/adam.h"
#include "optim/lr_schedule.h"
#include "tensor/parameter.h"

namespace mt {

class GoldenFile {
 public:
  // Throws DataError, EnvironmentError.
  explicit GoldenFile(const std::string& path);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const AdamOptions& adam() const { return adam_; }
  [[nodiscard]] const LrScheduleOptions& schedule() const { return schedule_; }
  [[nodiscard]] const Hdf5Reader& reader() const { return reader_; }

  // Windows of length + 1 tokens: [steps, batch, length + 1].
  [[nodiscard]] std::int64_t steps() const { return windows_.at(0); }
  [[nodiscard]] std::int64_t batch() const { return windows_.at(1); }
  [[nodiscard]] std::int64_t length() const { return windows_.at(2) - 1; }
  [[nodiscard]] std::vector<std::int32_t> tokens(std::int64_t step) const;

  // The numbers of one of our tensors from a group ("parameters", "float64/gradients", ...), whole
  // and in our layout: weights [out, in]; query, key and value apart.
  [[nodiscard]] std::vector<float> tensor(const std::string& group, const Segment& segment) const;
  [[nodiscard]] double number(const std::string& name) const;

 private:
  Hdf5Reader reader_;
  ModelConfig config_;
  AdamOptions adam_;
  LrScheduleOptions schedule_;
  Shape windows_;
};

}  // namespace mt
