#include "comm/communicator.h"

#include <cstring>
#include <exception>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {
namespace {

ElementKind kind_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ElementKind::kF32;
    case DType::kI32:
      return ElementKind::kI32;
    default:
      return ElementKind::kByte;
  }
}

Elements numbers(const Tensor& x) {
  const ElementKind kind = kind_of(x.dtype());
  MT_ASSERT(kind != ElementKind::kByte);
  return {.data = x.data(), .count = x.size(), .kind = kind};
}

Elements bytes(const Tensor& x) {
  return {.data = x.data(), .count = x.bytes(), .kind = ElementKind::kByte};
}

// While an exception unwinds, nobody waits for other ranks: they may never come.
bool unwinding() {
  return std::uncaught_exceptions() > 0;
}

}  // namespace

class Communicator::Waiting {
 public:
  // number: which operation of its kind in the group this is, from 1; 0: not counted.
  Waiting(const Communicator& group, Wait wait, std::int64_t number, int peer = -1)
      : pulse_(group.pulse_) {
    pulse_.enter(wait, group.short_name_, static_cast<std::uint64_t>(number), peer);
  }
  ~Waiting() { pulse_.leave(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const Pulse& pulse_;
};

void Communicator::all_reduce(const Tensor& x, ReduceOp op) const {
  if (size_ == 1 || unwinding()) return;
  count(CommCall::kAllReduce, x.bytes());
  const Waiting waiting(*this, Wait::kAllReduce, ledger_.calls_of(CommCall::kAllReduce));
  reduce_all(numbers(x), op);
}

void Communicator::all_reduce(double* x, std::int64_t n, ReduceOp op) const {
  if (size_ == 1 || unwinding()) return;
  const Elements elements{.data = x, .count = n, .kind = ElementKind::kF64};
  count(CommCall::kAllReduce, elements.bytes());
  const Waiting waiting(*this, Wait::kAllReduce, ledger_.calls_of(CommCall::kAllReduce));
  reduce_all(elements, op);
}

void Communicator::reduce_scatter(const Tensor& whole, const Tensor& part) const {
  MT_ASSERT(whole.size() == part.size() * size_ && whole.dtype() == part.dtype());
  if (unwinding()) return;
  if (size_ == 1) {
    if (whole.data() != part.data()) copy(whole, part);
    return;
  }
  count(CommCall::kReduceScatter, whole.bytes());
  const Waiting waiting(*this, Wait::kReduceScatter, ledger_.calls_of(CommCall::kReduceScatter));
  scatter_sum(numbers(whole), numbers(part));
}

void Communicator::all_gather(const Tensor& part, const Tensor& whole) const {
  MT_ASSERT(whole.size() == part.size() * size_ && whole.dtype() == part.dtype());
  if (unwinding()) return;
  if (size_ == 1) {
    if (whole.data() != part.data()) copy(part, whole);
    return;
  }
  count(CommCall::kAllGather, whole.bytes());
  const Waiting waiting(*this, Wait::kAllGather, ledger_.calls_of(CommCall::kAllGather));
  gather_all(bytes(part), bytes(whole));
}

void Communicator::broadcast(const Tensor& x, int root) const {
  MT_ASSERT(0 <= root && root < size_);
  if (size_ == 1 || unwinding()) return;
  count(CommCall::kBroadcast, x.bytes());
  const Waiting waiting(*this, Wait::kBroadcast, ledger_.calls_of(CommCall::kBroadcast));
  broadcast_from(bytes(x), root);
}

void Communicator::all_gather(const void* part, std::int64_t bytes, void* whole) const {
  if (unwinding()) return;
  if (size_ == 1) {
    if (part != whole) std::memcpy(whole, part, static_cast<std::size_t>(bytes));
    return;
  }
  count(CommCall::kAllGather, bytes * size_);
  const Waiting waiting(*this, Wait::kAllGather, ledger_.calls_of(CommCall::kAllGather));
  gather_all({.data = const_cast<void*>(part), .count = bytes},
             {.data = whole, .count = bytes * size_});
}

void Communicator::broadcast(void* x, std::int64_t bytes, int root) const {
  MT_ASSERT(0 <= root && root < size_);
  if (size_ == 1 || unwinding()) return;
  count(CommCall::kBroadcast, bytes);
  const Waiting waiting(*this, Wait::kBroadcast, ledger_.calls_of(CommCall::kBroadcast));
  broadcast_from({.data = x, .count = bytes}, root);
}

void Communicator::barrier() const {
  if (size_ == 1 || unwinding()) return;
  count(CommCall::kBarrier, 0);
  const Waiting waiting(*this, Wait::kBarrier, ledger_.calls_of(CommCall::kBarrier));
  wait_for_all();
}

void Communicator::send(const Tensor& x, int to) const {
  MT_ASSERT(0 <= to && to < size_ && to != rank_);
  if (unwinding()) return;
  count(CommCall::kSend, x.bytes());
  const Waiting waiting(*this, Wait::kSend, ledger_.calls_of(CommCall::kSend), to);
  send_to(x, to);
}

void Communicator::receive(const Tensor& x, int from) const {
  MT_ASSERT(0 <= from && from < size_ && from != rank_);
  if (unwinding()) return;
  count(CommCall::kReceive, x.bytes());
  const Waiting waiting(*this, Wait::kReceive, ledger_.calls_of(CommCall::kReceive), from);
  receive_from(bytes(x), from);
}

void Communicator::finish_sends() const {
  if (size_ == 1 || unwinding()) return;
  const Waiting waiting(*this, Wait::kFinishSends, 0);
  wait_for_sends();
}

std::unique_ptr<Communicator> Communicator::split(int color, int key,
                                                  const std::string& name) const {
  if (size_ == 1) return make_single_communicator();
  const Waiting waiting(*this, Wait::kSplit, 0);
  auto part = split_group(color, key, name);
  part->pulse_ = pulse_;
  return part;
}

}  // namespace mt
