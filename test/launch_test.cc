#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "comm/communicator.h"

namespace mt {
namespace {

// Sets the environment of a launcher and takes it away again.
class Launched : public testing::Test {
 protected:
  Launched() { clear(); }
  ~Launched() override { clear(); }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  static void clear() {
    for (const char* const name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "PMIX_RANK",
          "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NTASKS"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static void expect(int rank, int size) {
    const Launch launch = find_launch();
    EXPECT_EQ(launch.rank, rank);
    EXPECT_EQ(launch.size, size);
  }
};

TEST_F(Launched, alone_is_a_group_of_one) {
  expect(0, 1);
}

TEST_F(Launched, by_mpirun) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_RANK", "3");
  set("PMIX_RANK", "3");
  expect(3, 4);
}

TEST_F(Launched, by_mpirun_as_the_only_rank) {
  set("OMPI_COMM_WORLD_SIZE", "1");
  set("OMPI_COMM_WORLD_RANK", "0");
  set("PMIX_RANK", "0");
  expect(0, 1);
}

TEST_F(Launched, by_pmi) {
  set("PMI_SIZE", "2");
  set("PMI_RANK", "1");
  expect(1, 2);
}

TEST_F(Launched, by_srun) {
  set("SLURM_STEP_NUM_TASKS", "8");
  set("SLURM_PROCID", "5");
  set("PMIX_RANK", "5");
  expect(5, 8);
}

TEST_F(Launched, the_shell_of_a_batch_job_is_no_rank) {
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "4");
  expect(0, 1);
}

TEST_F(Launched, by_pmix_without_a_size_is_one_of_several) {
  set("PMIX_RANK", "0");
  EXPECT_GT(find_launch().size, 1);
  set("PMIX_RANK", "6");
  EXPECT_GT(find_launch().size, 6);
}

TEST_F(Launched, nonsense_is_named) {
  for (const char* const value : {"x", "-1", "1.5", "99999999999"}) {
    set("OMPI_COMM_WORLD_SIZE", value);
    try {
      static_cast<void>(find_launch());
      ADD_FAILURE() << value;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
    }
  }
}

TEST(SingleCommunicator, changes_nothing) {
  const auto group = make_single_communicator();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  std::array<double, 2> x = {1.5, -2};
  group->all_reduce(x.data(), 2, ReduceOp::kSum);
  group->all_reduce(x.data(), 2, ReduceOp::kMax);
  EXPECT_EQ(x, (std::array<double, 2>{1.5, -2}));
  group->barrier();
}

TEST(Mpi, names_its_version_in_one_line) {
  const std::string version = mpi_version();
  EXPECT_GT(version.size(), 4U);
  EXPECT_EQ(version.find('\n'), std::string::npos);
  EXPECT_EQ(version.find('\0'), std::string::npos);
}

}  // namespace
}  // namespace mt
