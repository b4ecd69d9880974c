#!/bin/bash
# An object of a kernel set must not define a weak function outside the set's own namespace: the
# linker may keep that copy for the whole program, and then a processor without, say, AVX-512
# executes AVX-512 where nothing was chosen.
#
# kernel_symbols.sh SOURCE BIN SCRATCH
set -u
build=$(dirname "$2")
if ! grep -qE '^CMAKE_BUILD_TYPE:[^=]*=(Release|RelWithDebInfo)$' "$build/CMakeCache.txt" ||
   grep -qE '^MT_SANITIZE:BOOL=ON$' "$build/CMakeCache.txt"; then
  echo "skipped: only an optimised build without sanitizers keeps inline functions out of the objects"
  exit 77
fi
status=0
objects=0
for set in baseline avx2 avx512; do
  for object in "$build/kernels/CMakeFiles/mt_kernels_$set.dir/cpu"/*.o; do
    [ -e "$object" ] || continue
    objects=$((objects + 1))
    # Weak (W, V, w, v) and unique (u) definitions; the reference to the exception handler's
    # personality is data that every C++ object has.
    found=$(nm -C --defined-only "$object" |
      grep -E '^[0-9a-f]+ [WVuwv] ' | grep -vE "mt::cpu::$set::|DW\.ref\.__gxx_personality_v0$")
    if [ -n "$found" ]; then
      echo "$object (set $set) defines outside mt::cpu::$set:"
      echo "$found" | sed 's/^[0-9a-f]* [A-Za-z] /  /'
      status=1
    fi
  done
done
if [ "$objects" -eq 0 ]; then
  echo "found no objects under $build/kernels"
  exit 1
fi
echo "$objects objects looked at"
exit $status
