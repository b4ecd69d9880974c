#!/bin/bash
# Runs fuzz targets over the kept corpus and beyond it.
# Arguments: source folder, program folder, scratch folder, names of targets. Environment: RUNS, inputs of each (20000; one
# number, or TARGET=N words after it for some), SECONDS_EACH, the most time for each (5; 0: no limit).
# Prints a line a target: how many inputs ran. New inputs that reach new code stay in SCRATCH/TARGET, findings in
# SCRATCH/TARGET-crash*: kept ones belong into test/fuzz/corpus/TARGET.
source=$1 bin=$2 scratch=$3
shift 3
failures=0
mkdir -p "$scratch" && cd "$scratch" || exit 1
for target in "$@"; do
  program=$bin/../test/${target}_fuzz
  kept=$source/test/fuzz/corpus/$target
  [ -x "$program" ] || { echo "FAILED: $target: $program is not there: it is built with clang (share/install-packages.sh test)"; failures=$((failures + 1)); continue; }
  [ -n "$(ls "$kept" 2> /dev/null)" ] || { echo "FAILED: $target: no corpus"; failures=$((failures + 1)); continue; }
  read -r all others <<< "${RUNS:-20000}"
  for word in $others; do [ "${word%%=*}" != "$target" ] || all=${word#*=}; done
  mkdir -p "$target"
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 "$program" -runs="$all" -max_total_time="${SECONDS_EACH:-5}" \
    -seed=1 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$target-" "$target" "$kept" > "$target.log" 2>&1
  status=$?
  ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$target.log")
  covered=$(grep -oE 'cov: [0-9]+' "$target.log" | tail -n 1)
  if [ $status -ne 0 ]; then
    echo "FAILED: $target: status $status after ${ran:-?} inputs: $(grep -m 1 -E 'ERROR|runtime error|terminate' "$target.log")"
    failures=$((failures + 1))
  elif [ "${ran:-0}" -lt 100 ] || [ -z "$covered" ]; then
    echo "FAILED: $target: only ${ran:-0} inputs ran"
    failures=$((failures + 1))
  else
    echo "$target: $ran of $all inputs, $covered, no finding"
  fi
done
echo "$failures failures"
exit $((failures > 0))
