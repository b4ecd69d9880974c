// manifest.json of a checkpoint, of one whose own hash is right; what is taken is written and read
// again.
#include "base/hash.h"
#include "ckpt/manifest.h"
#include "test/fuzz/fuzz.h"

namespace {

// The text with the hash that belongs to it in the last line.
std::string with_hash(std::string text) {
  const std::size_t last = text.rfind("\"manifest_xxh3_128\":");
  if (last != std::string::npos) text.resize(last);
  const std::string hash = mt::to_hex(mt::xxh3_128(text.data(), text.size()));
  return text + "\"manifest_xxh3_128\":\"" + hash + "\"}\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(mt::bytes_of(data, size));
  mt::parse_hostile([&] { static_cast<void>(mt::Manifest::parse(text, "fuzz")); });
  for (const auto scope : {mt::Manifest::Scope::kWhole, mt::Manifest::Scope::kPart}) {
    mt::parse_hostile([&] {
      const mt::Manifest manifest = mt::Manifest::parse(with_hash(text), "fuzz", scope);
      static_cast<void>(manifest.boxes_by_file());
      const std::string again = manifest.text();
      if (mt::Manifest::parse(again, "again", scope).text() != again) std::abort();
    });
  }
  return 0;
}
