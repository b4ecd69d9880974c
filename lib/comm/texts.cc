#include "comm/texts.h"

#include <algorithm>

namespace mt {

std::vector<std::string> gather_texts(const Communicator& group, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(group.size());
  // Lengths as numbers that a sum puts together: exact up to 2^53.
  std::vector<double> lengths(ranks, 0);
  lengths[static_cast<std::size_t>(group.rank())] = static_cast<double>(text.size());
  group.all_reduce(lengths.data(), group.size(), ReduceOp::kSum);
  const auto longest = static_cast<std::int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::string part = text;
  part.resize(static_cast<std::size_t>(longest));
  std::string whole(ranks * part.size(), '\0');
  group.all_gather(part.data(), longest, whole.data());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts[rank] = whole.substr(rank * part.size(), static_cast<std::size_t>(lengths[rank]));
  }
  return texts;
}

std::vector<std::string> gather_texts_at(const Communicator& group, const std::string& text,
                                         int root) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<double> lengths(ranks, 0);
  lengths[static_cast<std::size_t>(group.rank())] = static_cast<double>(text.size());
  group.all_reduce(lengths.data(), group.size(), ReduceOp::kSum);
  std::vector<std::string> texts(group.rank() == root ? ranks : 0);
  std::string passing;
  for (std::size_t from = 0; from < ranks; ++from) {
    std::string& here = group.rank() == root ? texts[from] : passing;
    if (static_cast<int>(from) == group.rank()) here = text;
    here.resize(static_cast<std::size_t>(lengths[from]));
    if (here.empty() || static_cast<int>(from) == root) continue;
    group.broadcast(here.data(), static_cast<std::int64_t>(here.size()), static_cast<int>(from));
  }
  return texts;
}

std::string broadcast_text(const Communicator& group, const std::string& text, int root) {
  double length = group.rank() == root ? static_cast<double>(text.size()) : 0;
  group.all_reduce(&length, 1, ReduceOp::kSum);
  std::string out = group.rank() == root ? text : "";
  out.resize(static_cast<std::size_t>(length));
  group.broadcast(out.data(), static_cast<std::int64_t>(out.size()), root);
  return out;
}

}  // namespace mt
