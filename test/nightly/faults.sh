#!/bin/bash
# usage: bash test/nightly/faults.sh [BUILD]
# The loops of test/fault without gaps: every call of every class with each error, every kill, every page of a full disk,
# every chain of callers that allocates (MT_ALLOCATION_POINTS=all: every allocation, which takes hours). Prints the
# figures that each loop counts, and ends with the number of scripts that failed.
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$source/build}" && pwd) || exit 1
scratch=$build/test/scratch/nightly
mkdir -p "$scratch"
export MT_LOOP_ALL=1 MT_LOOP_ERRORS="ENOSPC EIO EDQUOT EROFS" MT_ALLOCATION_POINTS=${MT_ALLOCATION_POINTS:-chains}
failed=0
run() { # run SCRIPT ARGUMENTS...
  echo "== $1"
  bash "$source/test/fault/$1" "$source" "$build/bin" "$scratch/${1%.sh}" "${@:2}"
  case $? in
    0) ;;
    77) echo "== $1: skipped" ;;
    *) failed=$((failed + 1)) ;;
  esac
}
date -u
all=$(bash -c '. "$1/test/fault/programs.sh"; echo $scenarios' scenarios "$source")
MT_LOOP_SCENARIOS=${MT_LOOP_SCENARIOS:-$all}
export MT_LOOP_SCENARIOS MT_FILL_STEP=4
run failing_calls.sh
run killed.sh
run allocations.sh
run limits.sh
date -u
echo "$failed scripts failed"
exit $((failed > 0))
