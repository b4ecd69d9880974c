// Chooses the kernel set at run time. Compiled once, without instruction set flags, as is
// whatever a kernel set calls to throw.
#include <array>
#include <string>
#include <string_view>

#include "base/error.h"
#include "kernels/kernels.h"

namespace mt::cpu {

namespace baseline {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

[[noreturn]] void refuse_dtype(DType dtype) {
  throw UsageError(cat("this operation has no version for elements of type ", dtype_name(dtype)));
}

namespace {

struct Set {
  const Kernels& (*table)();
  bool here;  // this processor has all the instructions that the set was compiled for
};

// The best first. __builtin_cpu_supports also asks whether the system saves the wide registers.
std::array<Set, 3> sets() {
  const bool avx2_here = __builtin_cpu_supports("avx2") != 0 &&
                         __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi2") != 0;
  const bool avx512_here = avx2_here && __builtin_cpu_supports("avx512f") != 0 &&
                           __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512vl") != 0 &&
                           __builtin_cpu_supports("avx512dq") != 0;
  return {Set{avx512::table, avx512_here}, Set{avx2::table, avx2_here}, Set{baseline::table, true}};
}

}  // namespace
}  // namespace mt::cpu

namespace mt {

const Kernels& cpu_kernels(const char* set) {
  const std::string_view wanted = set == nullptr ? "" : set;
  std::string available;
  bool known = wanted.empty();
  for (const cpu::Set& candidate : cpu::sets()) {
    const Kernels& kernels = candidate.table();
    known = known || wanted == kernels.name;
    if (!candidate.here) {
      continue;
    }
    if (wanted.empty() || wanted == kernels.name) {
      return kernels;
    }
    available = cat(kernels.name, available.empty() ? "" : ", ", available);
  }
  throw UsageError(
      cat(known ? "this processor cannot run the kernel set \"" : "there is no kernel set \"",
          wanted, "\"; it has ", available));
}

}  // namespace mt
