#include "comm/agreement.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mt {
namespace {

// What every rank is told when rank r has the facts that `of` gives it; "" for agreement.
std::string verdict(int ranks, const std::function<Facts(int rank)>& of) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  run_local_ranks(ranks, [&](const Communicator& world) {
    std::string& mine = told[static_cast<std::size_t>(world.rank())];
    try {
      check_agreement(world, of(world.rank()), cat("host-", world.rank() / 2));
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), ExitStatus::kPeer);
      mine = error.what();
    }
    EXPECT_EQ(world.ledger().calls_of(CommCall::kAllReduce), 0);  // the run's ledger is the run's
  });
  for (const std::string& other : told) EXPECT_EQ(other, told[0]);
  return told[0];
}

TEST(agreement, ranks_with_the_same_facts_agree) {
  for (const int ranks : {1, 2, 3, 8}) {
    EXPECT_EQ(verdict(ranks, [](int) { return Facts{{"--seed", "1"}, {"data", ""}}; }), "");
  }
  EXPECT_EQ(verdict(3, [](int) { return Facts{}; }), "");
}

TEST(agreement, the_first_fact_that_differs_is_told_on_all_ranks) {
  EXPECT_EQ(verdict(4,
                    [](int rank) {
                      return Facts{{"--seed", "1"},
                                   {"--lr", rank == 3 ? "0.1" : "0.2"},
                                   {"--x", rank == 1 ? "a" : "b"}};
                    }),
            "ranks disagree on --lr: expected 0.2 as on rank 0 (host-0), found 0.1 on rank 3 "
            "(host-1)");
  EXPECT_EQ(verdict(3,
                    [](int rank) {
                      return Facts{{"--seed", cat(rank)}};
                    }),
            "ranks disagree on --seed: expected 0 as on rank 0 (host-0), found 1 on rank 1 "
            "(host-0), and yet others on 1 ranks");
  EXPECT_EQ(verdict(3,
                    [](int rank) {
                      return Facts{{"--seed", rank == 0 ? "7" : "8"}};
                    }),
            "ranks disagree on --seed: expected 7 as on rank 0 (host-0), found 8 on ranks 1 "
            "(host-0), 2 (host-1)");
}

TEST(agreement, each_of_many_facts_counts) {
  constexpr int kFacts = 20;
  for (int bad = 0; bad < kFacts; ++bad) {
    const auto facts = [&](int rank) {
      Facts list;
      for (int i = 0; i < kFacts; ++i) {
        list.emplace_back(cat("--f", i), i == bad && rank == 1 ? "y" : "x");
      }
      return list;
    };
    EXPECT_EQ(verdict(2, facts), cat("ranks disagree on --f", bad,
                                     ": expected x as on rank 0 (host-0), found y on rank 1 "
                                     "(host-0)"));
  }
}

TEST(agreement, a_fact_more_or_less_or_of_another_name_is_a_difference) {
  const std::string more = verdict(2, [](int rank) {
    return rank == 0 ? Facts{{"a", "1"}} : Facts{{"a", "1"}, {"b", "2"}};
  });
  EXPECT_EQ(more,
            "ranks disagree on b: expected nothing as on rank 0 (host-0), found 2 on rank 1 "
            "(host-0)");
  EXPECT_NE(verdict(2, [](int rank) { return Facts{{rank == 0 ? "a" : "b", "1"}}; }), "");
  // The border between a name and its value is part of them.
  EXPECT_NE(verdict(2,
                    [](int rank) {
                      return rank == 0 ? Facts{{"ab", "c"}} : Facts{{"a", "bc"}};
                    }),
            "");
}

TEST(agreement, a_long_value_is_cut_in_the_message_alone) {
  const std::string text = verdict(2, [](int rank) {
    return Facts{{"a", std::string(5000, 'x') + cat(rank)}};
  });
  EXPECT_NE(text, "");
  EXPECT_LT(text.size(), 600U);
}

TEST(agreement, the_program_is_a_fact) {
  const Facts facts = program_facts();
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_EQ(facts[1].second.size(), 32U);
}

}  // namespace
}  // namespace mt
