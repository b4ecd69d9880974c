// Generation of the 124M shape beside what the machine gives, in one process and by turns: weights
// read a second at batch 1 against the read bandwidth (2 MiB pages), batch 8 against batch 1, a
// prefill of 512 tokens against the products that it is made of.
//
//   decode_bench [THREADS [KERNEL_SET [ROUNDS]]]
//
// One JSON line a measurement; ratios are medians over the rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/threads.h"
#include "comm/communicator.h"
#include "model/gpt.h"
#include "tensor/ops.h"

namespace {

using mt::DType;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

mt::ModelConfig gpt2() {
  mt::ModelConfig config;
  config.num_layers = 12;
  config.hidden_size = 768;
  config.num_attention_heads = 12;
  config.ffn_hidden_size = 3072;
  config.max_position_embeddings = 1024;
  config.vocab_size = 50257;
  config.check();
  return config;
}

// Bytes a second of all threads reading a block once, which no cache holds.
class ReadBandwidth {
 public:
  explicit ReadBandwidth(mt::Pool& pool)
      : block_(mt::Tensor::zero(pool, {kBytes}, DType::kU8, mt::MemoryKind::kWorkspace)) {}

  double measure() {
    const double start = now();
    mt::run_parts(
        kBytes / kPart, mt::threads(),
        [](const void* context, std::int64_t part, int) {
          using Words = long long __attribute__((vector_size(16)));
          const auto* p =
              reinterpret_cast<const Words*>(static_cast<const char*>(context) + part * kPart);
          Words sum[8] = {};
          for (std::size_t i = 0; i < kPart / sizeof(Words); i += 8) {
            for (std::size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
          }
          for (const Words& s : sum) asm volatile("" ::"x"(s));
        },
        block_.data());
    return kBytes / (now() - start);
  }

 private:
  static constexpr std::int64_t kBytes = std::int64_t{512} << 20;
  static constexpr std::int64_t kPart = std::int64_t{1} << 20;
  mt::Tensor block_;
};

// Seconds a step of greedy decoding after a prompt of 16.
double decode(mt::GptStage& stage, std::int64_t batch, int steps) {
  const auto cache = stage.make_cache(batch, 16 + steps);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(16 * batch), 11);
  std::vector<std::int64_t> best(static_cast<std::size_t>(batch));
  double start = 0;
  for (int step = 0; step <= steps; ++step) {
    if (step == 1) start = now();
    const mt::Tensor logits = stage.next_logits(
        {.batch = batch, .sequence = step == 0 ? 16 : 1, .tokens = tokens.data()}, *cache);
    mt::argmax(logits, best.data());
    std::copy(best.begin(), best.end(), tokens.begin());
  }
  return (now() - start) / steps;
}

double prefill(mt::GptStage& stage, std::int64_t length) {
  const auto cache = stage.make_cache(1, length);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length), 11);
  const double start = now();
  static_cast<void>(
      stage.next_logits({.batch = 1, .sequence = length, .tokens = tokens.data()}, *cache));
  return now() - start;
}

// Seconds of the products of a prefill by themselves, attention's counted by half.
double product_list(mt::Pool& pool, std::int64_t length, DType type) {
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k, DType b_type) {
    const auto zeros = [&](std::int64_t rows, std::int64_t cols, DType t) {
      return mt::Tensor::zero(pool, {rows, cols}, t, mt::MemoryKind::kWorkspace);
    };
    const mt::Tensor a = zeros(m, k, DType::kF32), b = zeros(n, k, b_type);
    const mt::Tensor c = zeros(m, n, DType::kF32);
    double least = 1e30;
    for (int i = 0; i < 3; ++i) {
      const double start = now();
      mt::linear(a, b, c);
      least = std::min(least, now() - start);
    }
    return least;
  };
  const double layer = product(length, 2304, 768, type) + product(length, 768, 768, type) +
                       product(length, 3072, 768, type) + product(length, 768, 3072, type);
  const double head =
      product(length, length, 64, DType::kF32) + product(length, 64, length, DType::kF32);
  return 12 * (layer + 12 * head / 2) + product(1, 50257, 768, type);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  const mt::Device device = mt::make_cpu_device(argc > 2 ? argv[2] : "", threads);
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  mt::Pool pool(device);
  const auto world = mt::make_single_communicator();
  const mt::ModelConfig config = gpt2();
  ReadBandwidth bandwidth(pool);
  for (const DType type : {DType::kF32, DType::kBf16}) {
    mt::GptStage stage(config, {.first_layer = 0, .last_layer = config.num_layers}, *world, pool,
                       mt::Use::kInference, type);
    stage.initialize(1);
    double weights = 0;  // bytes that a token reads: all matrices but the positions
    for (const mt::Parameter* p : stage.parameters()) {
      if (p->value.shape().size() == 2 && p->value.dim(0) != config.max_position_embeddings) {
        weights += static_cast<double>(p->value.bytes());
      }
    }
    std::map<std::string, std::vector<double>> seen;
    for (int round = 0; round <= rounds; ++round) {
      const double before = bandwidth.measure();
      const double one = decode(stage, 1, 48);
      const double rate = (before + bandwidth.measure()) / 2;
      const double eight = decode(stage, 8, 12);
      const double read = prefill(stage, 512), list = product_list(pool, 512, type);
      if (round == 0) continue;
      seen["tokens_per_s"].push_back(1 / one);
      seen["read_gb_per_s"].push_back(rate * 1e-9);
      seen["weights_over_bandwidth"].push_back(weights / one / rate);
      seen["batch8_over_batch1"].push_back(8 * one / eight);
      seen["list_over_prefill"].push_back(list / read);
    }
    std::printf(
        "{\"bench\": \"decode\", \"shape\": \"124m\", \"dtype\": \"%s\", \"set\": \"%s\", "
        "\"threads\": %d, \"rounds\": %d",
        mt::dtype_name(type), device.kernels->name, threads, rounds);
    for (const auto& [name, values] : seen)
      std::printf(", \"%s\": %.3f", name.c_str(), median(values));
    std::printf("}\n");
    std::fflush(stdout);
  }
  return 0;
}
