// golden_test FILE.h5 ...: compares the model and the optimizer with numbers that PyTorch computed
// in float64, as written by the golden script gpt_tiny.py for any shape. Prints every comparison
// with its figure and limit on stdout; exit status 1 if one misses, 3 if a file cannot be read.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "data/gpt_batches.h"
#include "golden_file.h"
#include "model/gpt.h"
#include "optim/gradient_norm.h"
#include "optim/zero1.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

class Comparison {
 public:
  void check(const std::string& what, double figure, double limit) {
    const bool holds = figure <= limit;  // false for NaN
    std::printf("%-4s %-64s %.3g (limit %g)\n", holds ? "ok" : "MISS", what.c_str(), figure, limit);
    ++count_;
    if (!holds) ++misses_;
  }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int misses() const { return misses_; }

 private:
  int count_ = 0, misses_ = 0;
};

double relative(double found, double expected) {
  return std::fabs(found - expected) / std::fabs(expected);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

// The norm of the difference over the norm of what is expected.
double frobenius(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

bool is_key_bias(const Segment& segment) {
  const std::string suffix = ".key.bias";
  return segment.name.size() > suffix.size() &&
         segment.name.compare(segment.name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

class GoldenRun {
 public:
  GoldenRun(const GoldenFile& file, Comparison& comparison)
      : file_(file),
        comparison_(comparison),
        model_(file.config(), {.first_layer = 0, .last_layer = file.config().num_layers}, *rig_.tp,
               rig_.pool, Use::kTraining) {
    for (const Parameter* parameter : model_.parameters()) {
      for (const Segment& segment : parameter->segments) {
        copy_from_host(file.tensor("parameters", segment).data(),
                       segment_rows(parameter->value, segment));
      }
    }
  }

  void run() {
    compare_forward();
    compare_gradients();
    compare_packed();
    compare_training();
  }

 private:
  // Loads a step's windows into batch_.
  [[nodiscard]] GptInput input(const std::vector<std::int32_t>& windows,
                               const PackingOptions& packing = {}) {
    const std::vector<std::int64_t> samples(static_cast<std::size_t>(file_.batch()), 0);
    const auto end_of_document = static_cast<std::int32_t>(file_.config().vocab_size - 1);
    make_gpt_batch(windows.data(), file_.batch(), file_.length(), end_of_document, packing,
                   samples.data(), batch_);
    return {.batch = batch_.batch,
            .sequence = batch_.sequence,
            .tokens = batch_.tokens.data(),
            .position_ids = batch_.position_ids.data(),
            .first_key = batch_.first_key.empty() ? nullptr : batch_.first_key.data(),
            .labels = batch_.labels.data(),
            .loss_weight = batch_.loss_weight.data()};
  }

  // The mean loss; gradients of it.
  double train(const GptInput& in) {
    const auto saved = model_.make_saved();
    const double scale = 1.0 / batch_.weight_sum();
    const double sum = model_.forward(in, {}, 0, scale, *saved).loss_sum;
    (void)model_.backward(in, {}, *saved);
    model_.finish_gradients();
    return sum * scale;
  }

  void compare_forward() {
    const GptInput in = input(file_.tokens(0));
    const Hdf5Reader& reader = file_.reader();
    const auto activations = model_.all_activations(in);
    for (std::size_t i = 0; i < activations.size(); ++i) {
      const std::string name = i == 0                       ? "embedding"
                               : i + 1 < activations.size() ? cat("block", i - 1)
                                                            : "final_norm";
      comparison_.check(
          name + ", largest difference",
          largest_difference(values_of(activations[i]), reader.read<float>("/float64/" + name)),
          1e-5);
    }
    comparison_.check(
        "logits, largest difference",
        largest_difference(values_of(model_.all_logits(in)), reader.read<float>("/float64/logits")),
        1e-5);
    std::vector<float> nll(static_cast<std::size_t>(in.batch * in.sequence));
    model_.token_nll(in, nll.data());
    double sum = 0;
    for (const float value : nll) sum += value;
    comparison_.check("loss of evaluation, relative",
                      relative(sum / static_cast<double>(nll.size()), file_.number("float64/loss")),
                      1e-6);
  }

  void compare_gradients() {
    comparison_.check("loss of training, relative",
                      relative(train(input(file_.tokens(0))), file_.number("float64/loss")), 1e-6);
    for (const Parameter* parameter : model_.parameters()) {
      for (const Segment& segment : parameter->segments) {
        const auto found = values_of(segment_rows(parameter->grad, segment));
        const auto expected = file_.tensor("float64/gradients", segment);
        // softmax does not see a key bias: its gradient is zero, and rounding is all there is
        if (is_key_bias(segment)) {
          comparison_.check("gradient of " + segment.name + ", largest difference",
                            largest_difference(found, expected), 1e-6);
        } else {
          comparison_.check("gradient of " + segment.name + ", relative norm",
                            frobenius(found, expected), 1e-4);
        }
      }
    }
    zero_gradients(model_.parameters());
  }

  void compare_packed() {
    const auto windows = file_.reader().read<std::int32_t>("/packed/tokens");
    for (int choice = 0; choice < 8; ++choice) {
      const PackingOptions packing{.reset_position_ids = (choice & 4) != 0,
                                   .reset_attention_mask = (choice & 2) != 0,
                                   .eod_mask_loss = (choice & 1) != 0};
      const std::string name =
          cat("reset_position_ids=", choice >> 2, ",reset_attention_mask=", (choice >> 1) & 1,
              ",eod_mask_loss=", choice & 1);
      const double loss = train(input(windows, packing));
      comparison_.check("packed " + name + ", relative",
                        relative(loss, file_.number("packed/loss/" + name)), 1e-6);
    }
    zero_gradients(model_.parameters());
  }

  void compare_training() {
    const Hdf5Reader& reader = file_.reader();
    const auto losses = reader.read<double>("/float64/adamw/loss");
    const auto norms = reader.read<double>("/float64/adamw/grad_norm");
    const auto rates = reader.read<double>("/float64/adamw/lr");
    Adam adam(file_.adam(), model_.parameters(), all_rows(model_.parameters()), rig_.pool);
    double loss_error = 0, norm_error = 0, rate_error = 0;
    for (std::int64_t step = 0; step < file_.steps(); ++step) {
      const auto k = static_cast<std::size_t>(step);
      const double rate = learning_rate(file_.schedule(), step);
      const double loss = train(input(file_.tokens(step)));
      const double norm = gradient_norm(model_.parameters());
      adam.step(rate, norm);
      loss_error = std::max(loss_error, relative(loss, losses.at(k)));
      norm_error = std::max(norm_error, relative(norm, norms.at(k)));
      rate_error = std::max(rate_error, std::fabs(rate - rates.at(k)));
    }
    comparison_.check("AdamW: learning rates, largest difference", rate_error, 0);
    comparison_.check("AdamW: losses, largest relative", loss_error, 1e-5);
    comparison_.check("AdamW: gradient norms, largest relative", norm_error, 1e-5);
    compare_end(adam);
  }

  // Parameters and moments after training. The key bias is left out: AdamW divides its gradient,
  // which is rounding noise, by its own size.
  void compare_end(const Adam& adam) {
    double parameter_error = 0, avg_error = 0, avg_sq_error = 0;
    for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
      const Parameter& parameter = *model_.parameters()[i];
      for (const Segment& segment : parameter.segments) {
        if (is_key_bias(segment)) continue;
        const auto error = [&](const Tensor& values, const char* group) {
          return frobenius(values_of(segment_rows(values, segment)), file_.tensor(group, segment));
        };
        parameter_error =
            std::max(parameter_error, error(parameter.value, "float64/adamw/parameters"));
        avg_error = std::max(avg_error, error(adam.exp_avg(i), "float64/adamw/exp_avg"));
        avg_sq_error =
            std::max(avg_sq_error, error(adam.exp_avg_sq(i), "float64/adamw/exp_avg_sq"));
      }
    }
    comparison_.check("AdamW: parameters at the end, largest relative norm", parameter_error, 1e-4);
    comparison_.check("AdamW: exp_avg at the end, largest relative norm", avg_error, 1e-4);
    comparison_.check("AdamW: exp_avg_sq at the end, largest relative norm", avg_sq_error, 1e-4);
  }

  const GoldenFile& file_;
  Comparison& comparison_;
  TestRig rig_;
  GptStage model_;
  GptBatch batch_;
};

int compare(const std::string& path) {
  const GoldenFile file(path);
  Comparison comparison;
  GoldenRun(file, comparison).run();
  std::printf("%s: %d comparisons, %d missed\n", path.c_str(), comparison.count(),
              comparison.misses());
  return comparison.misses() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mt

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: golden_test FILE.h5 ...\n");
    return 2;
  }
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      status = std::max(status, mt::compare(argv[i]));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "golden_test: %s\n", error.what());
      status = 3;
    }
  }
  return status;
}
