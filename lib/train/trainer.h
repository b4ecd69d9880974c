// One optimizer step over a global batch, and the evaluation of a data set, on a grid of ranks. The
// loop around them is in train/training_run.h. Every function is collective over the grid, with the
// same arguments on every rank, and gives every rank the same result.
//
// The loss of a step is the sum over all counted tokens of the global batch divided by their
// number, so that the micro-batch size enters nowhere: not the value, and (since gradients continue
// one chain over micro-batches) not one bit of the update.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "data/blend.h"
#include "data/gpt_batches.h"
#include "optim/adam.h"
#include "train/gradient_sync.h"
#include "train/grid_model.h"
#include "train/layer_norms.h"

namespace mt {

struct TrainerSettings {
  std::int64_t micro_batch_size = 0;
  std::int64_t global_batch_size = 0;  // a multiple of it; the most that a step takes
  std::int64_t seq_length = 0;
  std::uint32_t seed = 0;  // of dropout
  std::int32_t end_of_document = 0;
  PackingOptions packing;
  LayerNormsOptions norms;
};

class Trainer {
 public:
  // All must outlive it. optimizer: of the model's parameters and sync's slices.
  Trainer(const TrainerSettings& settings, const ProcessGrid& grid, GridModel& model,
          GradientSync& sync, Adam& optimizer);

  struct Step {
    double loss = 0;  // nats a token, before the update
    double lr = 0;
    double grad_norm = 0;                 // before clipping
    std::vector<LayerNorms> layers = {};  // before the update; empty unless asked for
  };
  // Gives the tokens of global sample i. A rank asks for its own samples: those of the data axis'
  // rank d are the d-th of equal parts of a global batch.
  using Window = std::function<void(std::int64_t, std::int32_t*)>;
  // What a step takes: samples [first_sample, first_sample + batch_size) of the run, batch_size a
  // multiple of the micro-batch.
  struct Plan {
    std::int64_t iteration = 0;  // from 0
    std::int64_t first_sample = 0, batch_size = 0;
    double lr = 0;
  };
  // Throws NumericError, naming the iteration (counted from 1, as checkpoints are) and the tensor,
  // for a loss or gradient that is not finite: then nothing was updated.
  Step step(const Window& window, const Plan& plan);

  // The mean nats of each sample of the last step, without dropout, with the weights as they are
  // now, the largest first. Costs a forward pass of the global batch.
  struct SampleLoss {
    std::int64_t sample = 0;  // its global number
    double loss = 0;
  };
  [[nodiscard]] std::vector<SampleLoss> sample_losses();

  struct Evaluation {
    double loss = 0;           // nats a counted token
    std::int64_t targets = 0;  // counted tokens
    std::int64_t samples = 0;  // windows visited
    bool complete = false;     // false: stopped in between
    [[nodiscard]] double perplexity() const;
  };
  // The first batches * global_batch_size samples of the data set's own order, the same ones at
  // every call. `stop` is asked between micro-batches, on every rank, and must answer alike. Throws
  // NumericError for a loss that is not finite, DataError where no target counts.
  Evaluation evaluate(const BlendedData& data, std::int64_t batches,
                      const std::function<bool()>& stop);
  // Every window in stored order, once.
  Evaluation evaluate_all(const BlendedData& data, const std::function<bool()>& stop);

 private:
  double take_batch(const Window& window, const Plan& plan);  // returns the counted tokens
  void fill(const Window& window, std::int64_t first, std::int64_t count, GptBatch& batch);
  // Sums of weight * nll and of weights a sample of a batch; zero on ranks without the head.
  struct Sums {
    double nll = 0, weight = 0;
  };
  void sample_sums(const GptBatch& batch, Sums* sums);
  // Of all ranks together.
  void combine(std::vector<Sums>& sums) const;
  Evaluation evaluate_windows(const Window& window, std::int64_t count,
                              const std::function<bool()>& stop);
  [[nodiscard]] NumericError not_finite(const std::string& what, std::int64_t iteration) const;

  TrainerSettings settings_;
  const ProcessGrid& grid_;
  GridModel& model_;
  GradientSync& sync_;
  Adam& optimizer_;
  // Reused in every step.
  std::vector<GptBatch> batches_;  // this rank's micro-batches of a global batch
  std::size_t taken_ = 0;          // of them, by the last step
  GptBatch evaluated_;
  std::vector<std::int32_t> windows_;  // of a micro-batch
  std::vector<std::int64_t> samples_;
  std::vector<float> nll_;
  std::int64_t batch_begin_ = 0, batch_size_ = 0;  // of the last step
};

// The name of the first segment that holds a value which is not finite, or "".
[[nodiscard]] std::string find_not_finite(const std::vector<Parameter*>& parameters);

}  // namespace mt
