#include "comm/agreement.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace mt {
namespace {

constexpr std::size_t kShown = 200;  // bytes of a value in the message

// Bytes as numbers that a sum of doubles keeps: every rank adds its own to zeros.
using Bytes = std::vector<double>;

Bytes bytes_of(std::string_view text, std::size_t size) {
  Bytes bytes(size, 0.0);
  for (std::size_t i = 0; i < std::min(text.size(), size); ++i) {
    bytes[i] = static_cast<unsigned char>(text[i]);
  }
  return bytes;
}

std::string text_of(const double* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size && bytes[i] != 0; ++i) {
    text += static_cast<char>(static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

void add_up(const Communicator& group, std::vector<double>& x) {
  group.all_reduce(x.data(), static_cast<std::int64_t>(x.size()), ReduceOp::kSum);
}

// The first `size` bytes of every rank's text, in the order of the ranks.
std::vector<std::string> gather(const Communicator& group, const std::string& text,
                                std::size_t size) {
  std::vector<double> all(size * static_cast<std::size_t>(group.size()), 0.0);
  const Bytes own = bytes_of(text, size);
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(size) * group.rank());
  add_up(group, all);
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += size) {
    texts.push_back(text_of(all.data() + at, size));
  }
  return texts;
}

std::string digest(std::string_view text) {
  return to_hex(xxh3_128(text.data(), text.size()));
}

// Names and values apart from each other, so that no two lists of facts give one text.
std::string digest(const Facts& facts) {
  std::string all;
  for (const auto& [what, value] : facts) {
    all += cat(what.size(), ":", what, value.size(), ":", value);
  }
  return digest(all);
}

// "rank 3 (host-b)", "ranks 2 (host-a), 3 (host-b)".
std::string ranks_text(const std::vector<std::size_t>& ranks,
                       const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += cat(i == 0 ? "" : ", ", ranks[i], " (", hosts[ranks[i]], ")");
  }
  if (ranks.size() > kNamed) text += cat(" and ", ranks.size() - kNamed, " more");
  return text;
}

}  // namespace

void check_agreement(const Communicator& world, const Facts& facts, const std::string& host) {
  if (world.size() == 1) return;
  // A group of its own: the ledgers of the run count the run.
  const auto group = world.split(0, world.rank(), "start");
  constexpr std::size_t kDigest = 32;
  const auto digests = gather(*group, digest(facts), kDigest);
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& other) { return other == digests.front(); })) {
    return;
  }
  // Rank 0's facts, by digest, tell each rank its first that differs; the earliest of all ranks'
  // is the one to report.
  const bool first = group->rank() == 0;
  std::vector<double> count{first ? static_cast<double>(facts.size()) : 0.0};
  add_up(*group, count);
  const auto expected = static_cast<std::size_t>(count[0]);
  std::size_t differs = std::min(expected, facts.size());
  for (std::size_t i = expected; i-- > 0;) {
    const std::string own = i < facts.size() ? digest(Facts{facts[i]}) : "";
    Bytes theirs = bytes_of(first ? own : "", kDigest);
    add_up(*group, theirs);
    if (i < facts.size() && text_of(theirs.data(), kDigest) != own) differs = i;
  }
  if (facts.size() == expected && differs == expected) differs = expected + 1;  // none here
  double latest = -static_cast<double>(differs);
  group->all_reduce(&latest, 1, ReduceOp::kMax);
  const auto at = static_cast<std::size_t>(-latest);
  const bool have = at < facts.size();
  const auto names = gather(*group, have ? facts[at].first : "", kShown);
  const auto values = gather(*group, have ? facts[at].second : "nothing", kShown);
  const auto full = gather(*group, have ? digest(Facts{facts[at]}) : "", kDigest);
  const auto hosts = gather(*group, host, kShown);
  std::vector<std::size_t> others;  // that have what the first of them has
  std::size_t more = 0;             // that have a third thing
  for (std::size_t r = 1; r < full.size(); ++r) {
    if (full[r] == full[0]) continue;
    if (others.empty() || full[r] == full[others[0]]) {
      others.push_back(r);
    } else {
      ++more;
    }
  }
  MT_ASSERT(!others.empty());
  const std::string& name = names[names[0].empty() ? others[0] : 0];
  throw Error(ExitStatus::kPeer, cat("ranks disagree on ", name, ": expected ", values[0],
                                     " as on ", ranks_text({0}, hosts), ", found ",
                                     values[others[0]], " on ", ranks_text(others, hosts),
                                     more == 0 ? "" : cat(", and yet others on ", more, " ranks")));
}

Facts program_facts() {
  const std::string path = "/proc/self/exe";
  std::ifstream file(path, std::ios::binary);
  StreamHash hash;
  std::vector<char> piece(std::size_t{1} << 18);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    hash.update(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) throw EnvironmentError(cat("cannot read ", path, ": ", std::strerror(errno)));
  return {{"the version of the program", MT_VERSION},
          {"the program's file (XXH3-128)", to_hex(hash.digest())}};
}

}  // namespace mt
