#!/bin/sh
# usage: sh test/run.sh [arguments of ctest, such as -L golden]
# Installs what is missing, builds, and runs the tests through CTest. BUILD names the build folder (default: build).
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}

sh share/install-packages.sh test
launcher=""
if command -v ccache >/dev/null 2>&1; then
  launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
cmake -S . -B "$build" -G Ninja -DBUILD_TESTING=ON $launcher >/dev/null
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"
