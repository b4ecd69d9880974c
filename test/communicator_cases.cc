#include "communicator_cases.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw Error(ExitStatus::kInternal, what);
}

// Numbers whose sum depends on its order.
float number(std::int64_t i, int rank) {
  const double x =
      std::sin(static_cast<double>(i * 131 + rank * 17 + 1)) * std::pow(10.0, rank % 5);
  return static_cast<float>(x);
}

// The sum in the order that communicator.h states, by levels.
template <typename T, typename F>
T tree(int ranks, const F& value) {
  std::vector<T> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(value(r));
  for (std::size_t step = 1; step < parts.size(); step *= 2) {
    for (std::size_t i = 0; i + step < parts.size(); i += 2 * step) parts[i] += parts[i + step];
  }
  return parts[0];
}

Tensor numbers(Pool& pool, std::int64_t count, int rank) {
  Tensor x(pool, {count}, DType::kF32, MemoryKind::kWorkspace);
  for (std::int64_t i = 0; i < count; ++i) x.as<float>()[i] = number(i, rank);
  return x;
}

void check_all_reduce(const Communicator& group, Pool& pool, std::int64_t count) {
  const Tensor x = numbers(pool, count, group.rank());
  group.all_reduce(x, ReduceOp::kSum);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto wanted = tree<float>(group.size(), [&](int r) { return number(i, r); });
    expect(std::memcmp(&wanted, &x.as<float>()[i], 4) == 0,
           cat("sum of ", count, ", element ", i, ": expected ", wanted, ", found ",
               x.as<float>()[i]));
  }
  const Tensor y = numbers(pool, count, group.rank());
  group.all_reduce(y, ReduceOp::kMax);
  for (std::int64_t i = 0; i < count; ++i) {
    float wanted = number(i, 0);
    for (int r = 1; r < group.size(); ++r) wanted = std::max(wanted, number(i, r));
    expect(wanted == y.as<float>()[i], cat("maximum of ", count, ", element ", i));
  }
}

void check_small(const Communicator& group, Pool& pool) {
  // A rank's NaN reaches everybody through either reduction (R03).
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (int odd = 0; odd < group.size(); ++odd) {
      double x = group.rank() == odd ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      group.all_reduce(&x, 1, op);
      expect(std::isnan(x), cat("the NaN of rank ", odd, " was lost"));
    }
  }
  const Tensor n(pool, {3}, DType::kI32, MemoryKind::kWorkspace);
  for (int i = 0; i < 3; ++i) n.as<std::int32_t>()[i] = group.rank() * 10 + i;
  group.all_reduce(n, ReduceOp::kMax);
  for (int i = 0; i < 3; ++i) {
    expect(n.as<std::int32_t>()[i] == (group.size() - 1) * 10 + i, "maximum of integers");
  }
  for (int root = 0; root < group.size(); ++root) {
    const Tensor x = numbers(pool, 1001, group.rank() == root ? 40 + root : 0);
    group.broadcast(x, root);
    for (std::int64_t i = 0; i < 1001; ++i) {
      expect(x.as<float>()[i] == number(i, 40 + root), cat("broadcast from ", root));
    }
  }
}

void check_parts(const Communicator& group, Pool& pool, std::int64_t part) {
  const int p = group.size();
  for (const bool in_place : {false, true}) {
    const Tensor whole = numbers(pool, part * p, group.rank());
    const Tensor mine = in_place ? whole.rows(group.rank() * part, (group.rank() + 1) * part)
                                 : Tensor(pool, {part}, DType::kF32, MemoryKind::kWorkspace);
    group.reduce_scatter(whole, mine);
    for (std::int64_t i = 0; i < part; ++i) {
      const auto wanted = tree<float>(p, [&](int r) { return number(group.rank() * part + i, r); });
      expect(wanted == mine.as<float>()[i],
             cat("part of a sum, ", part, " elements a rank, in place ", in_place, ", element ", i,
                 ": expected ", wanted, ", found ", mine.as<float>()[i]));
    }
  }
  const Tensor all(pool, {p, part}, DType::kF32, MemoryKind::kWorkspace);
  group.all_gather(numbers(pool, part, group.rank()), all);
  const Tensor own = all.rows(group.rank(), group.rank() + 1);
  copy(numbers(pool, part, group.rank() + 1).view({1, part}), own);
  group.barrier();
  const Tensor again(pool, {p, part}, DType::kF32, MemoryKind::kWorkspace);
  copy(own, again.rows(group.rank(), group.rank() + 1));
  group.all_gather(again.rows(group.rank(), group.rank() + 1), again);
  for (int r = 0; r < p; ++r) {
    for (std::int64_t i = 0; i < part; ++i) {
      expect(r == group.rank() || all.as<float>()[r * part + i] == number(i, r),
             cat("gathered part of rank ", r));
      expect(again.as<float>()[r * part + i] == number(i, r + 1),
             cat("gathered in place, part of rank ", r));
    }
  }
}

// Everybody sends to its right neighbour before anybody receives: many, so that no buffer of a
// transport holds them.
void check_letters(const Communicator& group, Pool& pool) {
  if (group.size() == 1) return;
  const int right = (group.rank() + 1) % group.size();
  const int left = (group.rank() + group.size() - 1) % group.size();
  for (std::int64_t count : {1, 1000, 60000}) {
    for (int letter = 0; letter < 5; ++letter) {
      group.send(numbers(pool, count, group.rank() + letter), right);
    }
    for (int letter = 0; letter < 5; ++letter) {
      const Tensor x(pool, {count}, DType::kF32, MemoryKind::kWorkspace);
      group.receive(x, left);
      for (std::int64_t i = 0; i < count; ++i) {
        expect(x.as<float>()[i] == number(i, left + letter), cat("letter ", letter, " of ", count));
      }
    }
  }
  group.finish_sends();
}

void check_split(const Communicator& group, Pool& pool) {
  // Two colors, in reverse order.
  const auto half = group.split(group.rank() % 2, -group.rank(), "half");
  const int members = (group.size() + 1 - group.rank() % 2) / 2;
  expect(half->size() == members, cat("a half has ", half->size(), " of ", members, " ranks"));
  expect(half->rank() == members - 1 - group.rank() / 2, "the order of a half");
  check_all_reduce(*half, pool, 77);
  check_letters(*half, pool);
}

void check_ledger(const Communicator& group, Pool& pool) {
  const Ledger before = group.ledger();
  const Tensor x = numbers(pool, 100 * group.size(), group.rank());
  group.all_reduce(x, ReduceOp::kSum);
  group.reduce_scatter(x, numbers(pool, 100, 0));
  const auto moved = [&](CommCall call) {
    return group.ledger().bytes_of(call) - before.bytes_of(call);
  };
  const std::int64_t bytes = group.size() == 1 ? 0 : 400 * group.size();
  expect(moved(CommCall::kAllReduce) == bytes && moved(CommCall::kReduceScatter) == bytes &&
             moved(CommCall::kAllGather) == 0,
         "the ledger");
}

}  // namespace

void check_communicator(const Communicator& group) {
  Pool pool(cpu_device("", 1));
  for (const std::int64_t count : {1, 5, 16, 1000, 20011}) check_all_reduce(group, pool, count);
  check_small(group, pool);
  for (const std::int64_t part : {1, 33, 9000}) check_parts(group, pool, part);
  check_letters(group, pool);
  check_split(group, pool);
  check_ledger(group, pool);
}

}  // namespace mt
