// Megatron-LM's PREFIX.idx; the first four bytes of the input are the size of PREFIX.bin.
#include <cstdio>

#include "data/megatron_index.h"
#include "test/fuzz/fuzz.h"

namespace {

// PREFIX.idx in the working directory is a link to a file in memory, removed when the process ends
// in peace.
struct Index {
  mt::MemoryFile file;
  std::string prefix = "fuzz-" + std::to_string(::getpid());
  Index() {
    const std::string name = prefix + ".idx";
    ::unlink(name.c_str());
    if (::symlink(file.path().c_str(), name.c_str()) != 0) std::abort();
  }
  ~Index() { ::unlink((prefix + ".idx").c_str()); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Index index;
  if (size < 4) return 0;
  std::uint64_t bin_bytes = 0;
  for (std::size_t i = 0; i < 4; ++i) bin_bytes |= std::uint64_t{data[i]} << (8 * i);
  index.file.fill(mt::bytes_of(data + 4, size - 4));
  mt::parse_hostile([&] {
    const mt::MegatronIndex found = mt::read_megatron_index(index.prefix, bin_bytes);
    for (std::size_t i = 1; i < found.offsets.size(); ++i) {
      if (found.offsets[i] < found.offsets[i - 1]) std::abort();
    }
    if (found.offsets.empty() || found.offsets.back() > found.tokens) std::abort();
  });
  return 0;
}
