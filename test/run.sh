#!/bin/sh
# usage: sh test/run.sh [arguments of ctest, such as -L golden]
# Installs what is missing, builds, and runs the tests through CTest. BUILD names the build folder (default: build). Cases
# that were skipped are counted with their reasons; CTest's own closing lines come last.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}

sh share/install-packages.sh test
launcher=""
if command -v ccache >/dev/null 2>&1; then
  launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
generator=""
if [ ! -f "$build/CMakeCache.txt" ]; then
  generator="-G Ninja"
fi
cmake -S . -B "$build" $generator -DBUILD_TESTING=ON $launcher >/dev/null
cmake --build "$build"

{
  ctest --test-dir "$build" --output-on-failure --no-tests=error "$@" && echo 0 > "$build/ctest.status" ||
    echo $? > "$build/ctest.status"
} 2>&1 | tee "$build/ctest.log"

log="$build/Testing/Temporary/LastTest.log"
echo
echo "Skipped cases inside the tests: $(grep -cE '^\[  SKIPPED \] .* \([0-9]+ ms\)' "$log" || true)"
grep -hA1 -E ': Skipped$|^SKIP|^skipped:' "$log" | grep -vE ': Skipped$|^--$|^<end of output>' | sort | uniq -c || true
echo
sed -n '/tests passed,/,$p' "$build/ctest.log"
exit "$(cat "$build/ctest.status")"
