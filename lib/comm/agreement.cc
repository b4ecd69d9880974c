#include "comm/agreement.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "comm/texts.h"

namespace mt {
namespace {

constexpr std::size_t kShown = 200;  // bytes of a value in the message
constexpr std::size_t kDigest = 32;  // characters of a digest

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

// The number of the first fact that is not in both; more than there are if there is none.
std::size_t differs_at(const std::string& expected, const std::string& found) {
  if (expected == found) return expected.size() + 1;
  std::size_t at = 0;
  while (expected.compare(at * kDigest, kDigest, found, at * kDigest, kDigest) == 0) ++at;
  return at;
}

}  // namespace

void check_agreement(const Communicator& world, const Facts& facts, const std::string& host) {
  if (world.size() == 1) return;
  // A group of its own: the ledgers of the run count the run.
  const auto group = world.split(0, world.rank(), "start");
  const auto all = gather_texts(*group, digest(facts));
  if (std::all_of(all.begin(), all.end(),
                  [&](const std::string& other) { return other == all.front(); })) {
    return;
  }
  // The first fact that is not rank 0's on some rank is the one to report.
  std::string own;
  for (const auto& fact : facts) own += digest(Facts{fact});
  const std::string expected = broadcast_text(*group, own);
  double first = -static_cast<double>(differs_at(expected, own));
  group->all_reduce(&first, 1, ReduceOp::kMax);
  const auto at = static_cast<std::size_t>(-first);
  const bool have = at < facts.size();
  const auto names = gather_texts(*group, have ? facts[at].first : "");
  const auto values = gather_texts(*group, have ? facts[at].second.substr(0, kShown) : "nothing");
  const auto full = gather_texts(*group, have ? digest(Facts{facts[at]}) : "");
  const auto hosts = gather_texts(*group, host);
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
