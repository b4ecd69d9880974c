#!/bin/bash
# usage: [RUNS="10000000 shard=2000000"] bash test/nightly/fuzz.sh [BUILD [TARGET...]]
# Each fuzz target (test/fuzz.cmake) over its corpus and millions of inputs more; prints how many ran. Inputs that reach new
# code stay in BUILD/test/scratch/nightly-fuzz and are where the next run begins.
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$source/build}" && pwd) || exit 1
shift
[ $# -gt 0 ] || read -ra targets <<< "$(sed -n 's/^set(fuzz_targets \(.*\))/\1/p' "$source/test/fuzz.cmake")"
export RUNS=${RUNS:-10000000 shard=2000000} SECONDS_EACH=${SECONDS_EACH:-0}
date -u
bash "$source/test/fuzz/run.sh" "$source" "$build/bin" "$build/test/scratch/nightly-fuzz" "${@:-${targets[@]}}"
status=$?
date -u
exit $status
