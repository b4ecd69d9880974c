// Every grid of up to 8 ranks with every choice of schedule, optimizer, sequence parallelism,
// recomputation and reduction: in tree mode the bits of one rank, in fast mode its numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "grid/grid_cases.h"
#include "grid_training.h"

namespace mt {
namespace {

using testing::GridCase;
using testing::GridTraining;
using testing::Trained;
using testing::Words;

class GridMatrix : public GridTraining {
 protected:
  Trained train_case(const GridCase& grid) {
    Words words;
    for (const std::string& word : grid.words()) words.push_back(word);
    return train(grid.ranks(), words);
  }
};

TEST_F(GridMatrix, tree_mode_gives_the_bits_of_one_rank) {
  const Trained one = train(1, {"--reduction", "tree"}, 2);
  std::size_t cases = 0;
  for (const GridCase& grid : testing::all_grid_cases()) {
    if (!grid.tree()) continue;
    ++cases;
    const Trained cut = train_case(grid);
    ASSERT_EQ(cut.lines.size(), one.lines.size()) << grid.name();
    for (std::size_t i = 0; i < one.lines.size(); ++i) {
      EXPECT_EQ(cut.lines[i]["loss"], one.lines[i]["loss"]) << grid.name() << ", step " << i + 1;
      EXPECT_EQ(cut.lines[i]["grad_norm"], one.lines[i]["grad_norm"])
          << grid.name() << ", step " << i + 1;
    }
    for (const auto& [name, wanted] : one.weights) {
      expect_same_bits(wanted, cut.weights.at(name), cat(grid.name(), ", ", name));
    }
    if (HasFailure()) break;  // the first says enough
  }
  EXPECT_EQ(cases, 237U);
}

TEST_F(GridMatrix, fast_mode_gives_the_numbers_of_one_rank) {
  const Trained one = train(1, {}, 2);
  for (const GridCase& grid : testing::all_grid_cases()) {
    if (grid.tree()) continue;
    const Trained cut = train_case(grid);
    ASSERT_EQ(cut.lines.size(), one.lines.size()) << grid.name();
    for (std::size_t i = 0; i < one.lines.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) {
        const double wanted = one.lines[i][key].get<double>();
        EXPECT_NEAR(cut.lines[i][key].get<double>(), wanted, 1e-6 * wanted)
            << grid.name() << ", " << key << " of step " << i + 1;
      }
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace mt
