// Grids of up to 8 ranks with all that a run can choose on them: all of them, and a set in which
// every pair of choices that fits meets at least once.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mt::testing {

// Values by factor, as indices.
struct GridCase {
  enum Factor { kTensor, kPipeline, kData, kSchedule, kZero, kSequence, kRecompute, kReduction };
  static constexpr std::size_t kFactors = 8;
  std::array<int, kFactors> value{};

  static int levels(std::size_t factor) {
    constexpr std::array<int, kFactors> kLevels{4, 3, 4, 3, 2, 2, 3, 2};
    return kLevels.at(factor);
  }
  [[nodiscard]] int tensor() const { return 1 << value[kTensor]; }
  [[nodiscard]] int pipeline() const { return 1 << value[kPipeline]; }
  [[nodiscard]] int data() const { return 1 << value[kData]; }
  [[nodiscard]] int ranks() const { return tensor() * pipeline() * data(); }
  [[nodiscard]] bool tree() const { return value[kReduction] == 1; }
  // Interleaved stages need several; what has no effect on such a grid stands at its first value.
  [[nodiscard]] bool fits() const {
    return ranks() <= 8 && (value[kSchedule] == 0 || pipeline() > 1) &&
           (value[kZero] == 0 || data() > 1) && (value[kSequence] == 0 || tensor() > 1);
  }

  [[nodiscard]] std::vector<std::string> words() const {
    std::vector<std::string> words{
        "--tensor-model-parallel-size",
        std::to_string(tensor()),
        "--pipeline-model-parallel-size",
        std::to_string(pipeline()),
        "--recompute-granularity",
        std::array{"none", "selective", "full"}.at(static_cast<std::size_t>(value[kRecompute])),
        "--reduction",
        tree() ? "tree" : "fast"};
    if (value[kSchedule] == 1) words.insert(words.end(), {"--pipeline-schedule", "gpipe"});
    if (value[kSchedule] == 2) {
      words.insert(words.end(), {"--num-layers-per-virtual-pipeline-stage", "1"});
    }
    if (value[kZero] == 1) words.emplace_back("--use-distributed-optimizer");
    if (value[kSequence] == 1) words.emplace_back("--sequence-parallel");
    return words;
  }
  [[nodiscard]] std::string name() const {
    std::string name = "data " + std::to_string(data());
    for (const std::string& word : words()) name += " " + word;
    return name;
  }
};

inline std::vector<GridCase> all_grid_cases() {
  std::vector<GridCase> all;
  GridCase next;
  for (;;) {
    if (next.fits()) all.push_back(next);
    std::size_t factor = 0;
    while (factor < GridCase::kFactors && ++next.value[factor] == GridCase::levels(factor)) {
      next.value[factor++] = 0;
    }
    if (factor == GridCase::kFactors) return all;
  }
}

// Greedy: the case that adds most pairs, the first of equals, until none is missing.
inline std::vector<GridCase> pairwise_grid_cases() {
  using Pair = std::array<int, 4>;
  const auto pairs = [](const GridCase& grid) {
    std::vector<Pair> all;
    for (std::size_t a = 0; a < GridCase::kFactors; ++a) {
      for (std::size_t b = a + 1; b < GridCase::kFactors; ++b) {
        all.push_back({static_cast<int>(a), grid.value[a], static_cast<int>(b), grid.value[b]});
      }
    }
    return all;
  };
  const std::vector<GridCase> all = all_grid_cases();
  std::set<Pair> missing;
  for (const GridCase& grid : all) {
    for (const Pair& pair : pairs(grid)) missing.insert(pair);
  }
  std::vector<GridCase> chosen;
  while (!missing.empty()) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::size_t adds = 0;
      for (const Pair& pair : pairs(all[i])) adds += missing.count(pair);
      if (adds > most) {
        most = adds;
        best = i;
      }
    }
    for (const Pair& pair : pairs(all[best])) missing.erase(pair);
    chosen.push_back(all[best]);
  }
  return chosen;
}

}  // namespace mt::testing
