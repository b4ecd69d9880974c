// Prints the grids of the pairwise set, a line each: ranks, then the options of mt-train.
#include "grid/grid_cases.h"

#include <iostream>

int main() {
  for (const mt::testing::GridCase& grid : mt::testing::pairwise_grid_cases()) {
    std::cout << grid.ranks();
    for (const std::string& word : grid.words()) std::cout << ' ' << word;
    std::cout << '\n';
  }
}
