// Everything between the last backward of a step and the optimizer, over all axes of the grid: sums
// of gradients (Narayanan et al., arXiv:2104.04473, section 2; Shoeybi et al., arXiv:1909.08053,
// section 3), ZeRO-1 (Rajbhandari et al., arXiv:1910.02054, section 5.1), and the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/grid.h"
#include "model/gpt.h"
#include "optim/data_buckets.h"
#include "optim/gradient_norm.h"
#include "tensor/parameter.h"

namespace mt {

class GradientSync {
 public:
  struct Settings {
    // ZeRO-1: each rank of the data axis updates a slice of each matrix.
    bool distributed_optimizer = false;
    // Bytes of small tensors that are reduced together.
    std::int64_t bucket_bytes = std::int64_t{8} << 20;
  };

  // stages: this rank's chunks of the model, first to last. All must outlive it.
  GradientSync(const ProcessGrid& grid, std::vector<GptStage*> stages, const Settings& settings,
               Pool& pool);

  // Of all chunks, in order: what the optimizer is made with.
  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  // The rows of each parameter that this rank updates: all without ZeRO-1.
  [[nodiscard]] const std::vector<RowRange>& slices() const { return slices_; }

  // While the last backward runs, if the caller wishes: the gradients of parameters [first, ..) of
  // chunk `chunk` and of all later chunks are complete, so that their buckets are summed now. Every
  // rank of the data axis says the same in the same order. Collective over the data axis.
  void complete(int chunk, std::size_t first);
  // How many buckets of how many are summed, of the step that is not finished yet.
  [[nodiscard]] std::size_t buckets_summed() const { return gradients_.summed(); }
  [[nodiscard]] std::size_t buckets() const { return gradients_.buckets(); }
  // After the last backward of a step. The gradients' slices become the sums over all ranks that
  // hold a part; rows outside of them are left undefined. Collective over the grid.
  void finish();
  // The norm of all gradients of the model, each element counted once; after finish(). The same on
  // every rank. Throws NumericError naming the first tensor that is not finite, the element and the
  // rank, the same on every rank. Collective over the grid.
  [[nodiscard]] double norm() const;
  // What this rank counts of its parameters, so that the ranks of group() together have each
  // element once; after finish().
  [[nodiscard]] std::vector<CountedGradient> counted() const;
  [[nodiscard]] const Communicator& group() const { return grid_.world(); }
  // After the optimizer's step: updated values go to all ranks of the data axis. Without ZeRO-1
  // there is nothing to do. Collective over the data axis.
  void publish() const;

 private:
  [[nodiscard]] Tensor slice_of(std::size_t i) const;  // of the gradient of parameter i
  [[nodiscard]] NormShare share() const;
  void reduce_tied_embedding() const;
  void reduce_over_tensor() const;

  const ProcessGrid& grid_;
  std::vector<GptStage*> stages_;
  Pool& pool_;
  std::vector<Parameter*> parameters_;
  std::vector<RowRange> slices_;
  std::vector<std::size_t> first_of_chunk_;  // of parameters_
  std::vector<std::size_t> entries_from_;    // of gradients_: those of parameters [i, ..)
  DataBuckets gradients_, values_;
};

}  // namespace mt
