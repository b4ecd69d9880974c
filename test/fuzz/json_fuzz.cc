// Any JSON document; what is one must come back from its line.
#include "base/json.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  mt::parse_hostile([&] {
    const mt::Json json = mt::parse_json(mt::bytes_of(data, size), "fuzz");
    if (json != mt::parse_json(mt::json_line(json), "again")) std::abort();
  });
  return 0;
}
