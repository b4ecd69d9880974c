// A token shard, of one whose user block has the right hash; what opens is read to its end. (The
// suite reads shards and checkpoints without libhdf5, so that no hostile byte reaches it.)
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "data/shard_layout.h"
#include "data/token_shard.h"
#include "test/fuzz/fuzz.h"

namespace {

void read_all(const mt::MemoryFile& file) {
  mt::parse_hostile([&] {
    const mt::TokenShardReader reader(file.path());
    for (std::int64_t d = 0; d <= reader.documents(); ++d) {
      static_cast<void>(reader.document_offset(d));
    }
    std::vector<std::int32_t> ids(1000);
    for (std::int64_t at = 0; at < reader.tokens(); at += 1000) {
      reader.read(at, std::min<std::int64_t>(1000, reader.tokens() - at), ids.data());
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const mt::MemoryFile file;
  std::string content(mt::bytes_of(data, size));
  file.fill(content);
  read_all(file);
  constexpr std::size_t kHash = mt::kShardUserBlock - 16;
  if (size < mt::kShardUserBlock) return 0;
  const mt::Digest128 hash = mt::xxh3_128(content.data(), kHash);
  std::memcpy(content.data() + kHash, &hash.low, 8);
  std::memcpy(content.data() + kHash + 8, &hash.high, 8);
  file.fill(content);
  read_all(file);
  return 0;
}
