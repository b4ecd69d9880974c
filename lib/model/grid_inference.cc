#include "model/grid_inference.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {
namespace {

using Kind = InferenceCommand::Kind;

// Rows that a piece has at least: products of fewer are slower than waiting stages.
constexpr std::int64_t kPieceRows = 128;
constexpr std::int64_t kPiecesAStage = 4;

// The numbers of a command, one after the other.
class Numbers {
 public:
  explicit Numbers(const InferenceCommand& command) : numbers_(command.numbers) {}
  std::int64_t next() { return numbers_.at(at_++); }
  [[nodiscard]] std::vector<std::int64_t> rest() const {
    return {numbers_.begin() + static_cast<std::ptrdiff_t>(at_), numbers_.end()};
  }

 private:
  const std::vector<std::int64_t>& numbers_;
  std::size_t at_ = 0;
};

std::vector<std::int32_t> part_of(const std::vector<std::int32_t>& all, std::int64_t begin,
                                  std::int64_t end) {
  return {all.begin() + begin, all.begin() + end};
}

std::int64_t counted_of(const PrefixTree& tree) {
  std::int64_t sum = 0;
  for (const PrefixTree::Branch& branch : tree.branches) sum += branch.counted;
  return sum;
}

}  // namespace

// Of rank 0, which alone has one; its own part of the keys and values is with all the others'.
class GridInference::Cache : public InferenceCache {
 public:
  Cache(GridInference& model, std::int64_t number) : model_(model), number_(number) {}
  ~Cache() override { model_.closed_.push_back(number_); }

  [[nodiscard]] std::int64_t cached(std::int64_t slot) const override {
    return GptStage::cached(*model_.caches_.at(number_), slot);
  }
  void truncate(std::int64_t slot, std::int64_t positions) override {
    model_.ask({.kind = Kind::kTruncate, .numbers = {number_, slot, positions}});
  }
  void fork(std::int64_t from, std::int64_t to, std::int64_t positions) override {
    model_.ask({.kind = Kind::kFork, .numbers = {number_, from, to, positions}});
  }
  [[nodiscard]] const float* next_logits(const GptInput& input,
                                         const std::vector<std::int64_t>& slots) override {
    MT_ASSERT(input.position_ids == nullptr && input.first_key == nullptr);
    InferenceCommand command{.kind = Kind::kNextLogits,
                             .numbers = {number_, input.batch, input.sequence},
                             .tokens = {input.tokens, input.tokens + input.batch * input.sequence}};
    command.numbers.insert(command.numbers.end(), slots.begin(), slots.end());
    logits_ = {};  // its buffer serves for the next
    logits_ = model_.ask(std::move(command));
    return logits_.as<float>();
  }

 private:
  GridInference& model_;
  std::int64_t number_;
  Tensor logits_;
};

GridInference::GridInference(const ProcessGrid& grid, GptStage& stage, Pool& pool)
    : grid_(grid), stage_(stage), pool_(pool) {
  MT_ASSERT(grid.shape().data == 1);
}

void GridInference::run(const std::function<void(InferenceModel&)>& work) {
  InferenceCommand command{.kind = Kind::kEnd};
  if (grid_.world().rank() == 0) {
    work(*this);
    broadcast_command(grid_.world(), command);
  } else {
    for (;;) {
      broadcast_command(grid_.world(), command);
      if (command.kind == Kind::kEnd) break;
      execute(command);
    }
  }
  caches_.clear();
  closed_.clear();
}

void GridInference::token_nll(const GptInput& input, float* nll, const std::int64_t* counted) {
  MT_ASSERT(input.position_ids == nullptr && input.first_key == nullptr);
  const std::int64_t count = input.batch * input.sequence;
  InferenceCommand command{.kind = Kind::kTokenNll,
                           .numbers = {input.batch, input.sequence},
                           .tokens = {input.tokens, input.tokens + count},
                           .labels = {input.labels, input.labels + count}};
  if (counted != nullptr) {
    command.numbers.insert(command.numbers.end(), counted, counted + input.batch);
  }
  const Tensor found = ask(std::move(command));
  if (found.defined()) copy_to_host(found, nll);
}

void GridInference::tree_nll(const std::vector<PrefixTree>& trees,
                             const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& labels, float* nll,
                             std::uint8_t* greedy) {
  InferenceCommand command{.kind = Kind::kTreeNll,
                           .numbers = {greedy != nullptr ? 1 : 0},
                           .tokens = tokens,
                           .labels = labels};
  for (const PrefixTree& tree : trees) {
    command.numbers.push_back(tree.prefix);
    command.numbers.push_back(static_cast<std::int64_t>(tree.branches.size()));
    for (const PrefixTree::Branch& branch : tree.branches) {
      command.numbers.push_back(branch.positions);
      command.numbers.push_back(branch.counted);
    }
  }
  const Tensor found = ask(std::move(command));
  if (!found.defined()) return;
  std::vector<float> values(static_cast<std::size_t>(found.size()));
  copy_to_host(found, values.data());
  const std::size_t count = greedy != nullptr ? values.size() / 2 : values.size();
  std::copy_n(values.begin(), count, nll);
  for (std::size_t i = 0; i + count < values.size(); ++i)
    greedy[i] = values[count + i] != 0 ? 1 : 0;
}

std::unique_ptr<InferenceCache> GridInference::open_cache(std::int64_t slots,
                                                          std::int64_t capacity) {
  const std::int64_t number = next_cache_++;
  closed_.reserve(static_cast<std::size_t>(next_cache_));  // a cache that ends must not throw
  ask({.kind = Kind::kOpenCache, .numbers = {number, slots, capacity}});
  return std::make_unique<Cache>(*this, number);
}

Tensor GridInference::ask(InferenceCommand command) {
  for (const std::int64_t number : std::exchange(closed_, {})) {
    ask({.kind = Kind::kCloseCache, .numbers = {number}});
  }
  broadcast_command(grid_.world(), command);
  return execute(command);
}

Tensor GridInference::execute(const InferenceCommand& command) {
  Numbers numbers(command);
  switch (command.kind) {
    case Kind::kTokenNll:
      return execute_token_nll(command);
    case Kind::kTreeNll:
      return execute_tree_nll(command);
    case Kind::kNextLogits:
      return execute_next_logits(command);
    case Kind::kEnd:
      return {};
    default:
      break;
  }
  const std::int64_t number = numbers.next();
  if (command.kind == Kind::kOpenCache) {
    const std::int64_t slots = numbers.next();
    caches_.emplace(number, stage_.make_cache(slots, numbers.next()));
    return {};
  }
  const auto cache = caches_.find(number);
  MT_ASSERT(cache != caches_.end());
  if (command.kind == Kind::kCloseCache) {
    caches_.erase(cache);
    return {};
  }
  const std::int64_t slot = numbers.next(), second = numbers.next();
  if (command.kind == Kind::kTruncate) {
    GptStage::truncate(*cache->second, slot, second);
  } else {
    GptStage::fork(*cache->second, slot, second, numbers.next());
  }
  return {};
}

Tensor GridInference::execute_token_nll(const InferenceCommand& command) {
  Numbers numbers(command);
  const std::int64_t batch = numbers.next(), sequence = numbers.next();
  const std::vector<std::int64_t> counted = numbers.rest();
  MT_ASSERT(counted.empty() || static_cast<std::int64_t>(counted.size()) == batch);
  std::vector<float> nll(command.tokens.size());
  std::int64_t at = 0;
  for (const Piece& piece : pieces(batch, batch * sequence)) {
    const GptInput input{.batch = piece.end - piece.begin,
                         .sequence = sequence,
                         .tokens = command.tokens.data() + piece.begin * sequence,
                         .labels = command.labels.data() + piece.begin * sequence};
    const std::int64_t* const asked = counted.empty() ? nullptr : counted.data() + piece.begin;
    const Tensor x = receive_activations(input.batch, sequence);
    pass_on(stage_.evaluate(input, x, nll.data() + at, asked));
    for (std::int64_t i = 0; i < input.batch; ++i) at += asked == nullptr ? sequence : asked[i];
  }
  nll.resize(static_cast<std::size_t>(at));
  return deliver(nll);
}

Tensor GridInference::execute_tree_nll(const InferenceCommand& command) {
  Numbers numbers(command);
  const bool wants_greedy = numbers.next() != 0;
  std::vector<PrefixTree> trees;
  for (std::int64_t rows = 0; rows < static_cast<std::int64_t>(command.tokens.size());) {
    PrefixTree& tree = trees.emplace_back();
    tree.prefix = numbers.next();
    for (std::int64_t branches = numbers.next(); branches > 0; --branches) {
      const std::int64_t positions = numbers.next();
      tree.branches.push_back({.positions = positions, .counted = numbers.next()});
    }
    rows += tree.rows();
  }
  std::vector<float> values(command.tokens.size());
  std::vector<std::uint8_t> greedy(wants_greedy ? values.size() : 0);
  std::int64_t row = 0, at = 0;
  for (const Piece& piece : pieces(static_cast<std::int64_t>(trees.size()),
                                   static_cast<std::int64_t>(command.tokens.size()))) {
    const std::vector<PrefixTree> some(trees.begin() + piece.begin, trees.begin() + piece.end);
    std::int64_t end = row, counted = 0;
    for (const PrefixTree& tree : some) {
      end += tree.rows();
      counted += counted_of(tree);
    }
    const Tensor x = receive_activations(1, end - row);
    pass_on(stage_.evaluate_trees(some, part_of(command.tokens, row, end),
                                  part_of(command.labels, row, end), x, values.data() + at,
                                  wants_greedy ? greedy.data() + at : nullptr));
    row = end;
    at += counted;
  }
  values.resize(static_cast<std::size_t>(at));
  if (wants_greedy) values.insert(values.end(), greedy.begin(), greedy.begin() + at);
  return deliver(values);
}

Tensor GridInference::execute_next_logits(const InferenceCommand& command) {
  Numbers numbers(command);
  GptStage::Cache& cache = *caches_.at(numbers.next());
  const std::int64_t batch = numbers.next(), sequence = numbers.next();
  const Tensor x = receive_activations(batch, sequence);
  const Tensor made =
      stage_.next_logits({.batch = batch, .sequence = sequence, .tokens = command.tokens.data()},
                         cache, numbers.rest(), x);
  const bool last = grid_.pipeline().rank() == grid_.pipeline().size() - 1;
  if (!last) pass_on(made);
  return deliver(last ? made : Tensor{}, {batch, config().vocab_size});
}

Tensor GridInference::receive_activations(std::int64_t batch, std::int64_t sequence) const {
  const Communicator& stages = grid_.pipeline();
  if (stages.rank() == 0) return {};
  Tensor x(pool_, {batch, sequence, config().hidden_size}, DType::kF32, MemoryKind::kActivations);
  stages.receive(x, stages.rank() - 1);
  return x;
}

void GridInference::pass_on(const Tensor& activations) const {
  if (activations.defined()) grid_.pipeline().send(activations, grid_.pipeline().rank() + 1);
}

Tensor GridInference::deliver(const Tensor& made, const Shape& shape) const {
  const Communicator& stages = grid_.pipeline();
  const int last = stages.size() - 1;
  Tensor result = made;
  // Every tensor rank of the last stage has it.
  if (grid_.place().tensor == 0 && last > 0) {
    if (stages.rank() == last) stages.send(made, 0);
    if (stages.rank() == 0) {
      result = Tensor(pool_, shape, DType::kF32, MemoryKind::kActivations);
      stages.receive(result, last);
    }
  }
  stages.finish_sends();
  return grid_.world().rank() == 0 ? result : Tensor{};
}

Tensor GridInference::deliver(const std::vector<float>& made) const {
  const Shape shape{static_cast<std::int64_t>(made.size())};
  if (made.empty()) {
    grid_.pipeline().finish_sends();
    return {};
  }
  const bool last = grid_.pipeline().rank() == grid_.pipeline().size() - 1;
  return deliver(
      last ? upload(pool_, made.data(), shape, DType::kF32, MemoryKind::kActivations) : Tensor{},
      shape);
}

std::vector<GridInference::Piece> GridInference::pieces(std::int64_t items,
                                                        std::int64_t rows) const {
  const std::int64_t stages = grid_.pipeline().size();
  const std::int64_t count =
      stages == 1
          ? 1
          : std::clamp<std::int64_t>(std::min(items, rows / kPieceRows), 1, kPiecesAStage * stages);
  std::vector<Piece> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back({.begin = items * i / count, .end = items * (i + 1) / count});
  }
  return all;
}

void run_inference(const ProcessGrid& grid, GptStage& stage, Pool& pool,
                   const std::function<void(InferenceModel&)>& work) {
  if (grid.world().size() > 1) {
    GridInference(grid, stage, pool).run(work);
    return;
  }
  WholeModel model(stage);
  work(model);
}

}  // namespace mt
