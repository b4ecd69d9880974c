#!/bin/bash
# What every program does around its work: status, stdout and stderr in every way of ending.
set -u
probe=$(realpath "$2/../test/run_main_probe") || exit 1
rm -rf "$3" && mkdir -p "$3" && cd "$3" || exit 1
unset MT_CPU OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_SIZE PMI_RANK PMIX_RANK SLURM_STEP_NUM_TASKS SLURM_PROCID
failures=0
checks=0

# check STATUS STDOUT STDERR ARGUMENTS: patterns of bash.
check() {
  local status=$1 out=$2 err=$3
  shift 3
  "$probe" "$@" >out 2>err
  expect "$*" $? "$status" "$out" "$err"
}
expect() {
  checks=$((checks + 1))
  [ "$2" = "$3" ] || { echo "FAIL: $1: status $2, expected $3"; failures=$((failures + 1)); }
  [[ "$(cat out)" == $4 ]] || { echo "FAIL: $1: stdout: $(cat out)"; failures=$((failures + 1)); }
  [[ "$(cat err)" == $5 ]] || { echo "FAIL: $1: stderr: $(cat err)"; failures=$((failures + 1)); }
}

info='mt-probe: information'
check 0 'line 0' "$info" --lines 1
check 1 '' "$info" --end difference
check 2 '' "$info"$'\n''mt-probe: error: out.h5: expected 1, found 2' --end usage
check 3 '' "$info"$'\n''mt-probe: error: out.h5: expected 1, found 2' --end data
check 4 '' "$info"$'\n''mt-probe: error: out.h5: expected 1, found 2' --end environment
check 5 '' "$info"$'\n''mt-probe: error: out.h5: expected 1, found 2' --end numeric
check 4 '' "$info"$'\n''mt-probe: error: out of memory' --end memory
check 70 '' "$info"$'\n''mt-probe: error: internal error: vector' --end bug
check 70 '' "$info"$'\n''mt-probe: error: internal error: an exception of unknown type' --end odd
check 70 '' "$info"$'\n''mt-probe: error: internal error: 1 == 2 does not hold at *run_main_probe.cc:*' --end assert
check 0 '' '' --quiet
check 3 '' 'mt-probe: error: out.h5*' --quiet --end data
check 0 '' "$info"$'\n''mt-probe: debug: detail' --verbose
check 2 '' 'mt-probe: error: unknown option --lnes; the nearest is --lines (see mt-probe --help)' --lnes 3
check 2 '' 'mt-probe: error: unexpected argument "x" (see mt-probe --help)' x
check 2 '' 'mt-probe: error: --threads: expected 0 to *' --threads -1
check 4 '' 'mt-probe: error: cannot read no.conf: No such file or directory' --config no.conf
check 0 'usage: mt-probe \[options\]*--threads N*' '' --help
check 0 'mt-probe [0-9]*.*'$'\n''compiler: GCC *'$'\n''MPI: *'$'\n''HDF5: *'$'\n''kernels: *' '' --version
check 0 '*'$'\n''end = done'$'\n''# lines = 0*' '' --print-config --end done
check 0 ' 3' "$info" --end context --threads 3
[ "$("$probe" --version | wc -l)" = 5 ] || { echo "FAIL: --version"; failures=$((failures + 1)); }

MT_CPU=baseline check 0 'baseline 0' "$info" --end context
MT_CPU=baseline check 0 '*kernels: baseline' '' --version
MT_CPU=nonsense check 2 '' 'mt-probe: error: environment variable MT_CPU: *nonsense*'

# Started as one of several ranks, and as the only one.
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 check 2 '' ''  # rank 0 says it
SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 check 2 '' 'mt-probe: error: started as 4 ranks*'
OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0 check 0 '' "$info"
SLURM_NTASKS=4 SLURM_PROCID=0 check 0 '' "$info"

# A stdout that takes nothing, at the end and in the middle, full or closed.
for lines in 1 100000; do
  "$probe" --lines $lines >/dev/full 2>err; status=$?
  : >out
  expect "$lines lines to a full disk" $status 4 '' "$info"$'\n''mt-probe: error: cannot write standard output: *'
  "$probe" --lines $lines >&- 2>err; status=$?
  expect "$lines lines to a closed stdout" $status 4 '' "$info"$'\n''mt-probe: error: cannot write standard output: *'
done
"$probe" --lines 1 >/dev/full 2>err
grep -q 'standard output: No space left on device' err || { echo "FAIL: reason: $(cat err)"; failures=$((failures + 1)); }
"$probe" --help >/dev/full 2>err; status=$?
expect "help to a full disk" $status 4 '' 'mt-probe: error: cannot write standard output: *'
"$probe" --end data --lines 1 >/dev/full 2>err; status=$?
expect "the first error decides" $status 3 '' '*out.h5*standard output*'
"$probe" >&- 2>err; status=$?
expect "a closed stdout that is not used" $status 0 '' "$info"

# A reader that goes away ends the program quietly.
("$probe" --lines 1000000 2>err; echo $? >status) | head -n 1 >out
expect "a broken pipe" "$(cat status)" 141 'line 0' ''

# A file that is opened never lands on a standard descriptor.
for closed in '0' '2' '0 2'; do
  (for fd in $closed; do eval "exec $fd>&-"; done; exec "$probe" --end descriptor >out)
  [ "$(cat out)" -ge 3 ] || { echo "FAIL: descriptor $(cat out) with $closed closed"; failures=$((failures + 1)); }
  checks=$((checks + 1))
done

echo "$checks checks, $failures failures"
[ $failures = 0 ]
