// A safetensors file; its tensors are read where they say that they lie.
#include <numeric>

#include "io/safetensors.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const mt::MemoryFile file;
  file.fill(mt::bytes_of(data, size));
  mt::parse_hostile([&] {
    const mt::SafetensorsReader reader(file.path());
    for (const auto& entry : reader.tensors()) {
      const std::string& name = entry.first;
      const unsigned char* const at = reader.data(name);
      volatile unsigned sum = std::accumulate(at, at + entry.second.bytes, 0U);
      static_cast<void>(sum);
      mt::parse_hostile([&] { static_cast<void>(reader.read_f32(name)); });
    }
  });
  return 0;
}
