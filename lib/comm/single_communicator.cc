#include "base/error.h"
#include "comm/communicator.h"

namespace mt {

namespace {

class SingleCommunicator : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void all_reduce(const Tensor& /*x*/, ReduceOp /*op*/) const override {}
  void all_reduce(double* /*x*/, int /*count*/, ReduceOp /*op*/) const override {}
  void broadcast(const Tensor& /*x*/, int root) const override { MT_ASSERT(root == 0); }
  void barrier() const override {}
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace mt
