#include "base/error.h"
#include "comm/communicator.h"

namespace mt {
namespace {

// The base class answers for a group of one; nothing here is ever called.
class SingleCommunicator : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, 1, "single") {}

 private:
  [[noreturn]] static void unreachable() { assertion_failed("a group of one", __FILE__, __LINE__); }
  void reduce_all(const Elements& /*x*/, ReduceOp /*op*/) const override { unreachable(); }
  void scatter_sum(const Elements& /*whole*/, const Elements& /*part*/) const override {
    unreachable();
  }
  void gather_all(const Elements& /*part*/, const Elements& /*whole*/) const override {
    unreachable();
  }
  void broadcast_from(const Elements& /*x*/, int /*root*/) const override { unreachable(); }
  void wait_for_all() const override { unreachable(); }
  void send_to(const Tensor& /*x*/, int /*to*/) const override { unreachable(); }
  void receive_from(const Elements& /*x*/, int /*from*/) const override { unreachable(); }
  void wait_for_sends() const override { unreachable(); }
  [[nodiscard]] std::unique_ptr<Communicator> split_group(
      int /*color*/, int /*key*/, const std::string& /*name*/) const override {
    unreachable();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace mt
