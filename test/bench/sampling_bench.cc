// The choice of one token of 50257 under several settings, on stored logits.
//
//   sampling_bench        a digest of all that the choices come from: of fixed operations
//   sampling_bench time   one JSON line a setting: milliseconds a token, the median of 41
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/philox.h"
#include "infer/sampling.h"

namespace {

constexpr std::int64_t kWidth = 50257;

// Bell-shaped, of the width of a language model's.
std::vector<float> stored_logits(std::uint32_t key, float scale) {
  std::vector<float> logits(kWidth);
  for (std::uint32_t i = 0; i < kWidth; ++i) {
    float sum = -2;
    for (const std::uint32_t word : mt::philox4x32_10({i, key, 0, 0}, 5, 6)) {
      sum += static_cast<float>(word >> 8) * 0x1p-24F;
    }
    logits[i] = scale * sum;
  }
  return logits;
}

struct Setting {
  const char* name;
  mt::SamplingOptions options;
};
const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"all", {}},
      {"temperature", {.temperature = 0.7}},
      {"top_p", {.top_p = 0.9}},
      {"top_p_near_1", {.top_p = 0.999}},
      {"top_p_of_rest", {.top_p = 1 - 0x1p-53}},
      {"top_k", {.top_k = 40}},
      {"top_k_top_p", {.temperature = 0.8, .top_k = 200, .top_p = 0.9}},
      {"wide_top_k", {.top_k = 20000}},
      {"penalty", {.top_p = 0.9, .repetition_penalty = 1.2}},
      {"greedy", {.greedy = true}},
  };
  return all;
}

const std::vector<std::int32_t> kHistory{11, 5, 11, 50256, 777};

int digest() {
  std::uint64_t hash = 14695981039346656037U;
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211U; };
  mt::Sampler sampler;
  for (const float scale : {0.0F, 4.0F, 9.0F, 2000.0F}) {
    auto logits = stored_logits(static_cast<std::uint32_t>(scale), scale);
    for (std::size_t i = 100; i < 200; ++i) logits[i] = logits[7];  // ties
    for (std::size_t i = 300; i < 310; ++i) logits[i] = i % 2 == 0 ? 0.0F : -0.0F;
    for (const Setting& setting : settings()) {
      for (const mt::Candidate& candidate :
           sampler.candidates(logits.data(), kWidth, kHistory, setting.options)) {
        add(static_cast<std::uint64_t>(candidate.token));
        add(std::bit_cast<std::uint64_t>(candidate.probability));
      }
      add(static_cast<std::uint64_t>(
          sampler.next(logits.data(), kWidth, kHistory, setting.options, 3, 9)));
    }
    for (const std::int32_t token : {0, 7, 50256}) {
      add(std::bit_cast<std::uint64_t>(mt::log_probability(logits.data(), kWidth, token)));
    }
  }
  std::printf("%016llx\n", static_cast<unsigned long long>(hash));
  return 0;
}

template <typename F>
void measure(const char* name, const F& f) {
  std::vector<double> seconds;
  for (int i = 0; i < 41; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f(static_cast<std::uint64_t>(i));
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "{\"bench\": \"sampling\", \"what\": \"%s\", \"value\": %.3f, \"unit\": \"ms/token\", "
      "\"goal\": 1.0, \"command\": \"test/sampling_bench time\"}\n",
      name, seconds[20] * 1e3);
}

int time_all() {
  mt::Sampler sampler;
  for (const float scale : {4.0F, 9.0F}) {
    const auto logits = stored_logits(1, scale);
    for (const Setting& setting : settings()) {
      const std::string name = std::string(setting.name) + (scale > 4 ? ", peaked" : ", flat");
      measure(name.c_str(), [&](std::uint64_t i) {
        static_cast<void>(sampler.next(logits.data(), kWidth, kHistory, setting.options, i, 9));
      });
    }
  }
  const auto logits = stored_logits(1, 9);
  measure("log_probability", [&](std::uint64_t i) {
    const double found = mt::log_probability(logits.data(), kWidth, static_cast<std::int32_t>(i));
    asm volatile("" ::"x"(found));
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "time") == 0 ? time_all() : digest();
}
