// The process grid: tensor x data x pipeline (Narayanan et al., arXiv:2104.04473, section 2), and
// the communicators along its axes.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace mt {

struct GridShape {
  int tensor = 1, pipeline = 1;
  int data = 0;  // 0: what is left of the ranks, set by check()

  // Throws UsageError with the arithmetic unless tensor * pipeline * data is the number of ranks.
  void check(int ranks);
};

// Where a rank stands. Tensor neighbours follow each other, then data, then pipeline, as in
// Megatron-LM: rank = (pipeline * data_size + data) * tensor_size + tensor.
struct GridPlace {
  int tensor = 0, pipeline = 0, data = 0;
};
[[nodiscard]] GridPlace place_of(const GridShape& shape, int rank);
[[nodiscard]] int rank_at(const GridShape& shape, const GridPlace& place);

// Built once, in the command. Collective over world, which must outlive it.
class ProcessGrid {
 public:
  // Throws as GridShape::check does.
  ProcessGrid(const Communicator& world, GridShape shape);

  [[nodiscard]] const GridShape& shape() const { return shape_; }
  [[nodiscard]] const GridPlace& place() const { return place_; }
  [[nodiscard]] const Communicator& world() const { return world_; }
  // The ranks that differ from this one along one axis alone, in the order of that axis.
  [[nodiscard]] const Communicator& tensor() const { return *tensor_; }
  [[nodiscard]] const Communicator& data() const { return *data_; }
  [[nodiscard]] const Communicator& pipeline() const { return *pipeline_; }
  // One replica of the model: all tensor and pipeline ranks of this rank's place in the data axis.
  [[nodiscard]] const Communicator& model() const { return *model_; }
  // First and last stage of this rank's pipeline, which both hold a tied embedding; of size 1 on
  // the stages between, and where first is last.
  [[nodiscard]] const Communicator& embedding() const { return *embedding_; }

 private:
  const Communicator& world_;
  GridShape shape_;
  GridPlace place_;
  std::unique_ptr<Communicator> tensor_, data_, pipeline_, model_, embedding_;
};

}  // namespace mt
