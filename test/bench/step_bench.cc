// A training step beside its products, on one machine in one process, in alternating rounds:
//
//   step_bench SHAPE [THREADS [KERNEL_SET [ROUNDS]]]     SHAPE: 124m-b4-t256 124m-b4-t64
//   small-b8-t256
//
// The list of products is timed with ours and with the OpenBLAS that is found (whose kernels
// OPENBLAS_CORETYPE chooses), and for each product the faster counts. Prints one JSON line a
// measurement; ratios are medians over the rounds, with their range. step.sh runs it beside torch.
#include <dlfcn.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"
#include "comm/communicator.h"
#include "model/gpt.h"
#include "optim/adam.h"
#include "optim/gradient_norm.h"
#include "optim/zero1.h"
#include "train/step_products.h"

namespace {

using mt::StepProduct;
using Kind = mt::StepProduct::Kind;

struct Shape {
  const char* name;
  std::int64_t layers, width, heads, vocabulary, batch, length;
  double most_step, most_forward;  // goals: ratios to the lists
};
constexpr Shape kShapes[] = {{"124m-b4-t256", 12, 768, 12, 50257, 4, 256, 1.20, 1.15},
                             {"124m-b4-t64", 12, 768, 12, 50257, 4, 64, 1.20, 1.15},
                             {"small-b8-t256", 4, 256, 4, 8192, 8, 256, 1.30, 1.15}};

struct Blas {
  void (*sgemm)(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                float*, int) = nullptr;
  void (*set_threads)(int) = nullptr;
  std::string name = "none";

  Blas() {
    void* const library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (library == nullptr) return;
    sgemm = reinterpret_cast<decltype(sgemm)>(dlsym(library, "cblas_sgemm"));
    set_threads =
        reinterpret_cast<decltype(set_threads)>(dlsym(library, "openblas_set_num_threads"));
    const auto core = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"));
    if (core != nullptr) name = core();
  }

  void multiply(const StepProduct& p, const mt::ProductRunner::Operands& o) const {
    const auto m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    const bool weight = p.kind == Kind::kWeight, forward = p.kind == Kind::kForward;
    sgemm(101, weight ? 112 : 111, forward ? 112 : 111, m, n, k, 1.0F, o.a.as<float>(),
          weight ? m : k, o.b.as<float>(), forward ? k : n, weight ? 1.0F : 0.0F, o.c.as<float>(),
          n);
  }
  // As many at once as there are threads, one thread each; a single product on all of them.
  void run(const mt::ProductRunner& runner, std::size_t i) const {
    const StepProduct& p = runner.products()[i];
    set_threads(p.batch > 1 ? 1 : mt::threads());
    mt::run_parts_or_throw(p.batch, mt::threads(),
                           [&](std::int64_t element) { multiply(p, runner.operands(i, element)); });
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const auto& call) {
  const double begin = now();
  call();
  return now() - begin;
}

// Idle threads of a library spin for a while, and would take the other's core.
void settle() {
  if (mt::threads() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
}

std::int64_t minor_faults() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

class Reporter {
 public:
  Reporter(std::string bench, std::string command)
      : bench_(std::move(bench)), command_(std::move(command)) {}
  void line(const std::string& what, const std::vector<double>& values, const char* unit,
            const std::string& goal) const {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    std::cout << mt::json_line({{"bench", bench_},
                                {"what", what},
                                {"value", median(values)},
                                {"unit", unit},
                                {"goal", goal},
                                {"least", *least},
                                {"most", *most},
                                {"rounds", values.size()},
                                {"command", command_}})
              << "\n"
              << std::flush;
  }

 private:
  std::string bench_, command_;
};

// a = b + s c, stores past the cache not used: what ordinary code gets.
class Triad {
 public:
  explicit Triad(std::int64_t count)
      : count_(count), a_(size()), b_(size(), 1.0F), c_(size(), 2.0F) {}
  // GB/s, three arrays counted.
  double rate() {
    const double seconds = seconds_of([&] {
      mt::run_parts_or_throw(kParts, mt::threads(), [&](std::int64_t part) {
        float* const a = a_.data();
        const float *const b = b_.data(), *const c = c_.data();
        for (std::int64_t i = part * (count_ / kParts); i < (part + 1) * (count_ / kParts); ++i) {
          a[i] = b[i] + 0.5F * c[i];
        }
      });
    });
    return 12e-9 * static_cast<double>(count_) / seconds;
  }

 private:
  static constexpr std::int64_t kParts = 64;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(count_); }
  std::int64_t count_;
  std::vector<float> a_, b_, c_;
};

struct Lists {
  double ours_forward = 0, ours_step = 0, best_forward = 0, best_step = 0;
};

// One round over all products; ratios[i] gets OpenBLAS's time over ours.
Lists round_of_lists(const mt::ProductRunner& runner, const Blas& blas,
                     std::vector<std::vector<double>>& ratios) {
  Lists lists;
  for (std::size_t i = 0; i < runner.products().size(); ++i) {
    const StepProduct& p = runner.products()[i];
    const double weight = static_cast<double>(p.count) * p.share;
    const double flop = p.operations() / weight;
    const int calls = std::max(1, static_cast<int>(2e9 / flop));
    const auto time = [&](const auto& call) {
      settle();
      call();
      return weight * seconds_of([&] {
               for (int c = 0; c < calls; ++c) call();
             }) /
             calls;
    };
    const double ours = time([&] { runner.run(i); });
    const double theirs = blas.sgemm == nullptr ? ours : time([&] { blas.run(runner, i); });
    ratios[i].push_back(theirs / ours);
    const double best = std::min(ours, theirs);
    lists.ours_step += ours;
    lists.best_step += best;
    lists.ours_forward += p.forward ? ours : 0;
    lists.best_forward += p.forward ? best : 0;
  }
  settle();
  return lists;
}

class Job {
 public:
  Job(const Shape& shape, mt::Pool& pool)
      : config_(config_of(shape)),
        world_(mt::make_single_communicator()),
        model_(config_, {.first_layer = 0, .last_layer = shape.layers}, *world_, pool,
               mt::Use::kTraining),
        optimizer_({}, model_.parameters(), mt::all_rows(model_.parameters()), pool),
        saved_(model_.make_saved()),
        tokens_(static_cast<std::size_t>(shape.batch * shape.length)),
        labels_(tokens_.size()),
        nll_(tokens_.size()) {
    model_.initialize(1234);
    std::uint32_t state = 7;
    const auto token = [&] {
      state = state * 1664525U + 1013904223U;
      return static_cast<std::int32_t>((state >> 4) % static_cast<std::uint32_t>(shape.vocabulary));
    };
    for (std::int32_t& t : tokens_) t = token();
    for (std::int32_t& t : labels_) t = token();
    input_ = {.batch = shape.batch,
              .sequence = shape.length,
              .tokens = tokens_.data(),
              .labels = labels_.data()};
  }
  [[nodiscard]] const mt::ModelConfig& config() const { return config_; }
  // All of a step but the update, the gradient's norm included.
  void gradients() {
    (void)model_.forward(input_, {}, 1, 1.0 / static_cast<double>(tokens_.size()), *saved_);
    model_.backward(input_, {}, *saved_);
    model_.finish_gradients();
    norm_ = mt::gradient_norm(model_.parameters());
  }
  void update() { optimizer_.step(1e-5, norm_); }
  void forward() { model_.token_nll(input_, nll_.data()); }

 private:
  static mt::ModelConfig config_of(const Shape& shape) {
    mt::ModelConfig config;
    config.num_layers = shape.layers;
    config.hidden_size = shape.width;
    config.num_attention_heads = shape.heads;
    config.vocab_size = shape.vocabulary;
    config.max_position_embeddings = 1024;
    config.hidden_dropout = config.attention_dropout = 0;
    config.check();
    return config;
  }
  mt::ModelConfig config_;
  std::unique_ptr<mt::Communicator> world_;
  mt::GptStage model_;
  mt::Adam optimizer_;
  decltype(model_.make_saved()) saved_;
  std::vector<std::int32_t> tokens_, labels_;
  std::vector<float> nll_;
  mt::GptInput input_;
  double norm_ = 0;
};

void measure(const Shape& shape, mt::Pool& pool, int rounds, const Reporter& report) {
  const Blas blas;
  Job job(shape, pool);
  const mt::ProductRunner runner(mt::step_products(job.config(), shape.batch, shape.length), pool);
  Triad triad(std::int64_t{1} << 25);
  std::vector<std::vector<double>> ratios(runner.products().size());
  const auto parameters = static_cast<double>(job.config().parameter_count());
  const double tokens = static_cast<double>(shape.batch * shape.length);
  std::vector<double> step_over, step_over_ours, forward_over, adam_over, rate, list_rate, faults,
      allocations, forward_rate;
  for (int step = 0; step < 2; ++step) {
    job.gradients();
    job.update();
    job.forward();
  }
  (void)triad.rate();
  for (int round = 0; round < rounds; ++round) {
    const Lists lists = round_of_lists(runner, blas, ratios);
    const std::int64_t before = minor_faults();
    const std::int64_t taken = pool.use().system_allocations;
    const double gradients = seconds_of([&] { job.gradients(); });
    const double update = seconds_of([&] { job.update(); });
    faults.push_back(static_cast<double>(minor_faults() - before));
    allocations.push_back(static_cast<double>(pool.use().system_allocations - taken));
    const double forward = seconds_of([&] { job.forward(); });
    const double bandwidth = std::max(triad.rate(), triad.rate());
    step_over.push_back(gradients / lists.best_step);
    step_over_ours.push_back(gradients / lists.ours_step);
    forward_over.push_back(forward / lists.best_forward);
    adam_over.push_back(update / (28e-9 * parameters / bandwidth));
    rate.push_back(tokens / (gradients + update));
    forward_rate.push_back(tokens / forward);
    list_rate.push_back(tokens / lists.best_step);
  }
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const StepProduct& p = runner.products()[i];
    constexpr const char* kKinds[] = {"NT", "NN", "TN"};
    report.line(mt::cat("product / OpenBLAS (", blas.name, "): ", p.name, " ",
                        kKinds[static_cast<int>(p.kind)], " ", p.m, " x ", p.n, " x ", p.k),
                ratios[i], "x", ">= 0.95");
  }
  report.line("step without AdamW / list", step_over, "x", mt::cat("<= ", shape.most_step));
  report.line("step without AdamW / our list", step_over_ours, "x", "");
  report.line("forward / list", forward_over, "x", mt::cat("<= ", shape.most_forward));
  report.line("AdamW / 28 bytes a parameter at the triad's rate", adam_over, "x", "<= 1.3");
  report.line("minor faults a step", faults, "", "< 50");
  report.line("system allocations a step", allocations, "", "0");
  report.line("training step", rate, "tokens/s", "");
  report.line("forward", forward_rate, "tokens/s", "");
  report.line("list", list_rate, "tokens/s", "");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string name = argc > 1 ? argv[1] : "";
  const auto* const shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                         [&](const Shape& s) { return name == s.name; });
  if (shape == std::end(kShapes)) {
    std::fprintf(stderr, "usage: step_bench SHAPE [THREADS [KERNEL_SET [ROUNDS]]]\n");
    return 2;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::string set = argc > 3 ? argv[3] : "";
  const int rounds = argc > 4 ? std::max(1, std::atoi(argv[4])) : 5;
  mt::Pool pool(mt::cpu_device(set, threads));
  const std::string kernels = pool.device().kernels->name;
  measure(*shape, pool, rounds,
          Reporter(mt::cat("step ", name, ", ", kernels, ", ", threads, " threads"),
                   mt::cat("step_bench ", name, " ", threads, " ", kernels, " ", rounds)));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "step_bench: %s\n", error.what());
  return 1;
}
