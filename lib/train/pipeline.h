// Runs the micro-batches of a step through this rank's part of the pipeline: one loop over the
// steps of a schedule (train/schedule.h), whatever the schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "model/gpt.h"
#include "train/schedule.h"

namespace mt {

// Which layers chunk `chunk` of stage `stage` has. Throws UsageError with the arithmetic unless the
// chunks of all stages divide the layers.
[[nodiscard]] StageRange chunk_range(std::int64_t layers, const ScheduleShape& shape, int stage,
                                     int chunk);

class Pipeline {
 public:
  // chunks: this stage's parts of the model, first to last. `forth` and `back` are two groups of
  // the same ranks, one a stage, in order: activations travel in one, gradients in the other, so
  // that each has one order of letters. All must outlive the pipeline. The shape must have been
  // checked.
  Pipeline(std::vector<GptStage*> chunks, const ScheduleShape& shape, const Communicator& forth,
           const Communicator& back, Pool& pool);

  // Forward and backward of all micro-batches; gradients are added. Their number need not be that
  // of the shape, which must then be good for it (ScheduleShape::check), and is a multiple of the
  // stages' sample_shards(), each of which is so many consecutive micro-batches. Every stage gets
  // the same inputs (labels and weights matter on the last alone). Returns the sum of weighted
  // losses on the stage that has the head, 0 elsewhere: one chain over the positions of a sample
  // shard, the shards in a balanced tree. Collective over the pipeline. Throws NumericError naming
  // the micro-batch for a loss that is not finite.
  //
  // complete(chunk, first), if given, is called whenever no micro-batch will add to the gradients
  // of the chunk's parameters [first, ..) any more: the last chunk before the others, the last
  // layers of a chunk before its first. What it does not say is complete when run() returns.
  using Complete = std::function<void(int chunk, std::size_t first)>;
  double run(const std::vector<GptInput>& inputs, std::uint32_t dropout_seed, double gradient_scale,
             const Complete& complete = nullptr);

  // The negative log-likelihood of every label, without dropout: nll [b * s] in nats, overwritten
  // on the stage that has the head. Every stage gets the same input. Collective over the pipeline.
  void token_nll(const GptInput& input, float* nll);

 private:
  using SavedPtr = decltype(std::declval<const GptStage&>().make_saved());
  [[nodiscard]] bool first(int chunk) const { return chunk == 0 && forth_.rank() == 0; }
  [[nodiscard]] bool last(int chunk) const {
    return chunk == shape_.chunks - 1 && forth_.rank() == forth_.size() - 1;
  }
  void take(std::size_t micro_batches);
  // True for the last micro-batch of a sample shard.
  [[nodiscard]] bool ends_part(const PipelineStep& step) const;
  void forward(const PipelineStep& step, const GptInput& input, std::uint32_t seed, double scale);
  void backward(const PipelineStep& step, const GptInput& input, const Complete& complete);
  [[nodiscard]] Tensor activations(const GptInput& input) const;

  std::vector<GptStage*> chunks_;
  ScheduleShape shape_;
  const Communicator& forth_;
  const Communicator& back_;
  Pool& pool_;
  std::vector<PipelineStep> steps_;
  // By chunk: what is in flight, oldest first, and what is free for use again.
  std::vector<std::vector<SavedPtr>> in_flight_, free_;
  int part_ = 1;                     // micro-batches of a sample shard
  std::vector<double> part_losses_;  // of the sample shards so far
};

}  // namespace mt
