// Threads as ranks. Every operation is the same three steps: all ranks show where their data lies,
// each computes its share of the result, each takes what it needs.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/combine.h"
#include "comm/communicator.h"

namespace mt {
namespace {

// What all groups of a world share: whether one of its ranks has failed.
struct World {
  std::atomic<int> failed{-1};  // the first rank that did
  std::mutex mutex;
  std::exception_ptr error;

  void fail(int rank, std::exception_ptr what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failed.load() >= 0) return;
    error = std::move(what);
    failed.store(rank);
  }
};

struct Group {
  Group(std::shared_ptr<World> all, int members)
      : world(std::move(all)),
        size(members),
        shown(static_cast<std::size_t>(members)),
        colors(static_cast<std::size_t>(members)) {}

  std::shared_ptr<World> world;
  int size;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  std::uint64_t epoch = 0;

  std::vector<const void*> shown;  // by rank
  struct Color {
    int color = 0, key = 0;
    std::shared_ptr<Group> group;  // of the ranks with this color, made by their first
  };
  std::vector<Color> colors;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;  // by (from, to)

  // Waits until ready() holds, or a rank of the world has failed. The lock must be held.
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const Ready& ready) {
    do {
      if (const int rank = world->failed.load(); rank >= 0) {
        throw Error(ExitStatus::kPeer, cat("rank ", rank, " of the world failed"));
      }
    } while (!changed.wait_for(lock, std::chrono::milliseconds(20), ready));
  }

  void barrier() {
    std::unique_lock<std::mutex> lock(mutex);
    const std::uint64_t now = epoch;
    if (++arrived == size) {
      arrived = 0;
      ++epoch;
      changed.notify_all();
      return;
    }
    wait(lock, [&] { return epoch != now; });
  }
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(int rank, std::shared_ptr<Group> group, const std::string& name)
      : Communicator(rank, group->size, name), group_(std::move(group)) {}

 private:
  std::vector<const void*> show(const void* data) const {
    group_->shown[static_cast<std::size_t>(rank())] = data;
    group_->barrier();
    return group_->shown;
  }

  static std::vector<const void*> at(const std::vector<const void*>& data, std::int64_t offset) {
    std::vector<const void*> moved;
    for (const void* const part : data) {
      moved.push_back(static_cast<const std::byte*>(part) + offset);
    }
    return moved;
  }

  void reduce_all(const Elements& x, ReduceOp op) const override {
    const std::int64_t width = element_bytes(x.kind);
    const std::vector<const void*> data = show(x.data);
    const Slice mine = slice_of(x.count, size(), rank());
    std::vector<std::byte> sum(static_cast<std::size_t>((mine.end - mine.begin) * width));
    combine_tree(x.kind, op, at(data, mine.begin * width), mine.end - mine.begin, sum.data());
    group_->barrier();  // nobody reads the operands any longer
    const std::vector<const void*> sums = show(sum.data());
    for (int i = 0; i < size(); ++i) {
      const Slice slice = slice_of(x.count, size(), i);
      std::memcpy(static_cast<std::byte*>(x.data) + slice.begin * width,
                  sums[static_cast<std::size_t>(i)],
                  static_cast<std::size_t>((slice.end - slice.begin) * width));
    }
    group_->barrier();
  }

  void scatter_sum(const Elements& whole, const Elements& part) const override {
    const std::vector<const void*> data = show(whole.data);
    combine_tree(whole.kind, ReduceOp::kSum, at(data, rank() * part.bytes()), part.count,
                 part.data);
    group_->barrier();
  }

  void gather_all(const Elements& part, const Elements& whole) const override {
    const std::vector<const void*> data = show(part.data);
    for (int i = 0; i < size(); ++i) {
      void* const to = static_cast<std::byte*>(whole.data) + i * part.bytes();
      const void* const from = data[static_cast<std::size_t>(i)];
      if (to != from) std::memcpy(to, from, static_cast<std::size_t>(part.bytes()));
    }
    group_->barrier();
  }

  void broadcast_from(const Elements& x, int root) const override {
    const std::vector<const void*> data = show(x.data);
    if (rank() != root) {
      std::memcpy(x.data, data[static_cast<std::size_t>(root)],
                  static_cast<std::size_t>(x.bytes()));
    }
    group_->barrier();
  }

  void wait_for_all() const override { group_->barrier(); }

  void send_to(const Tensor& x, int to) const override {
    const auto* const data = static_cast<const std::byte*>(x.data());
    std::vector<std::byte> letter(data, data + x.bytes());
    const std::lock_guard<std::mutex> lock(group_->mutex);
    group_->mail[{rank(), to}].push_back(std::move(letter));
    group_->changed.notify_all();
  }

  void receive_from(const Elements& x, int from) const override {
    std::unique_lock<std::mutex> lock(group_->mutex);
    auto& box = group_->mail[{from, rank()}];
    group_->wait(lock, [&] { return !box.empty(); });
    const std::vector<std::byte> letter = std::move(box.front());
    box.pop_front();
    MT_ASSERT(static_cast<std::int64_t>(letter.size()) == x.bytes());
    std::memcpy(x.data, letter.data(), letter.size());
  }

  void wait_for_sends() const override {}  // a letter is a copy

  [[nodiscard]] std::unique_ptr<Communicator> split_group(int color, int key,
                                                          const std::string& name) const override {
    auto& colors = group_->colors;
    const auto me = static_cast<std::size_t>(rank());
    colors[me] = {.color = color, .key = key, .group = nullptr};
    group_->barrier();
    std::vector<std::pair<int, int>> members;  // (key, rank)
    for (int i = 0; i < size(); ++i) {
      const auto& other = colors[static_cast<std::size_t>(i)];
      if (other.color == color) members.emplace_back(other.key, i);
    }
    std::sort(members.begin(), members.end());
    const auto first = static_cast<std::size_t>(members.front().second);
    const auto place = std::find(members.begin(), members.end(), std::pair(key, rank()));
    if (first == me) {
      colors[me].group = std::make_shared<Group>(group_->world, static_cast<int>(members.size()));
    }
    group_->barrier();
    auto group = colors[first].group;
    group_->barrier();
    return std::make_unique<LocalCommunicator>(static_cast<int>(place - members.begin()),
                                               std::move(group), name);
  }

  std::shared_ptr<Group> group_;
};

}  // namespace

void run_local_ranks(int size, const RankBody& body) {
  MT_ASSERT(size > 0);
  const auto world = std::make_shared<World>();
  const auto group = std::make_shared<Group>(world, size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(LocalCommunicator(rank, group, "world"));
      } catch (...) {
        world->fail(rank, std::current_exception());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (world->error) std::rethrow_exception(world->error);
}

}  // namespace mt
