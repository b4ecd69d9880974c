#!/usr/bin/env bash
# A rank that ends badly ends the job: in 5 s, with one line that names it, and with a status of ours where it could give one.
set -u
. "$(dirname "$0")/mpi.sh"
probe=$(realpath "$2/../test/failing_ranks") || exit 1
rm -rf "$3" && mkdir -p "$3" && cd "$3" || exit 1
host=$(hostname)
shared=$(ls /dev/shm)  # of others
failures=0 checks=0

# case STATUS LINES MPIRUN-ARGUMENTS...: LINES is a pattern of bash for our lines on stderr but the information.
case_of() {
  local status=$1 lines=$2 begin end found
  shift 2
  begin=$(date +%s%N)
  timeout 60 mpirun "$@" >out 2>err
  found=$?
  end=$(date +%s%N)
  checks=$((checks + 1))
  local ours
  ours=$(grep '^mt-probe' err | grep -v ': information$')
  local seconds=$(((end - begin) / 1000000000))
  [ "$found" = "$status" ] || { echo "FAIL: $*: status $found, expected $status"; failures=$((failures + 1)); cat err; }
  [[ "$ours" == $lines ]] || { echo "FAIL: $*: stderr: $ours"; failures=$((failures + 1)); }
  [ $(wc -l <<<"$ours") -le 1 ] || { echo "FAIL: $*: more than one line: $ours"; failures=$((failures + 1)); }
  [ "$seconds" -lt 20 ] || { echo "FAIL: $*: took $seconds s"; failures=$((failures + 1)); }
}
one="mt-probe: rank 1 on $host: error:"

case_of 0 '' -n 3 "$probe"
[ "$(grep -c information err)" = 1 ] && [[ "$(cat out)" == "3 ranks, "*" threads" ]] || { echo "FAIL: $(cat out err)"; failures=1; }
case_of 75 '' -n 2 "$probe" --how requeue

# The rank says it itself, whatever the others are in: a sum in shared memory, a letter of MPI's, the end.
for phase in computing letter end; do
  case_of 3 "$one shard.h5: expected 1, found 2" -n 3 "$probe" --how throw --phase "$phase"
done
case_of 4 "$one out of memory" -n 3 "$probe" --how memory
case_of 70 "$one internal error: vector" -n 3 "$probe" --how bug
case_of 70 "$one internal error: exit() was called in the middle of the work" -n 3 "$probe" --how exit
case_of 4 "mt-probe: rank 0 on $host: error: disk full" -n 3 "$probe" --how environment --rank 0
# A lost peer is said last: whoever caused it may still speak.
case_of 6 "$one a rank was lost" -n 3 "$probe" --how lost
# One line for all where all fail alike, and for one where each has its own.
case_of 2 'mt-probe: error: --rounds 3: expected 4' -n 4 "$probe" --how alike --rank -1
case_of 5 "mt-probe: rank [0-3] on $host: error: rank [0-3] found no number" -n 4 "$probe" --how each --rank -1
case_of 2 'mt-probe: error: unknown option --lnes*' -n 3 "$probe" --lnes
case_of 2 "mt-probe: rank 2 on $host: error: unknown option --lnes*" -n 2 "$probe" : -n 1 "$probe" --lnes

# The launcher says it where the rank cannot.
for phase in computing letter end; do
  case_of 137 '' -n 3 "$probe" --how kill --phase "$phase"
done
grep -q 'rank 1 .*signal 9' err || { echo "FAIL: mpirun names no rank: $(cat err)"; failures=1; }
case_of 139 '' -n 3 "$probe" --how segfault
case_of 134 '' -n 3 "$probe" --how abort
case_of 3 '' -n 3 "$probe" --how _exit

# Before MPI has started on all ranks.
case_of 3 '*shard.h5: expected 1, found 2' -n 3 "$probe" --start throw
case_of 137 '' -n 3 "$probe" --start kill

# Ranks that do not agree.
case_of 6 "mt-probe: error: ranks disagree on --rounds: expected 3 as on rank 0 ($host), found 4 on rank 2 ($host)" \
  -n 2 "$probe" : -n 1 "$probe" --rounds 4
case_of 0 '' -n 2 "$probe" --threads 1 : -n 1 "$probe" --threads 2 --quiet
{ cat "$probe"; echo; } >other && chmod +x other
case_of 6 "mt-probe: error: ranks disagree on the program's file*, found * on rank 1 ($host)" -n 1 "$probe" : -n 1 ./other

# Answers come once.
timeout 60 mpirun -n 3 "$probe" --version >out 2>err && [ "$(grep -c '^mt-probe' out)" = 1 ] ||
  { echo "FAIL: --version: $(cat out err)"; failures=$((failures + 1)); }

# The watchdog.
limit='mt-probe: error: no progress for 1 s (--hang-timeout):'
case_of 6 "$limit rank 1 on $host is stopped, in no operation (adding, step 3); ranks 0, 2 are in all_reduce 3 of world" \
  -n 3 "$probe" --how stop --hang-timeout 1
case_of 6 "$limit rank 1 on $host is in no operation (adding, step 3); ranks 0, 2 are in all_reduce 3 of world" \
  -n 3 "$probe" --how loop --hang-timeout 1
case_of 6 "$limit rank 0 on $host is in no operation (adding, step 3); rank 1 is in all_reduce 4 of world, rank 2 is in end of sibling" \
  -n 3 "$probe" --how loop --phase letter --rank 0 --hang-timeout 1
case_of 6 "$limit rank 1 on $host is stopped*" -n 3 "$probe" --how stop --phase end --hang-timeout 1
# Ranks that are in different operations, with and without the watchdog.
case_of 6 'mt-probe: error: ranks of one group are not in the same operation: the first in all_reduce of 8 bytes, number 3 of 3 in barrier of 0 bytes' \
  -n 3 "$probe" --phase barrier --rank 2
# Each rank a node: what is known is said.
MT_RANKS_PER_NODE=1 case_of 6 "mt-probe: error: no progress for [3-5] s (--hang-timeout): all ranks on $host wait: rank 0 is in all_reduce 3 of world (adding, step 3); what they wait for is on another node, whose ranks are not seen from here" -n 2 "$probe" --phase barrier --rank 1 --hang-timeout 1
# What all compute for longer than the limit is no hang, nor is any wait that ends in time.
case_of 0 '' -n 2 "$probe" --compute 1.5 --rounds 1 --hang-timeout 1
case_of 0 '' -n 2 "$probe" --compute 0.3 --rounds 5 --hang-timeout 1

# Nothing is left in shared memory.
left=$(comm -13 <(echo "$shared") <(ls /dev/shm))
[ -z "$left" ] || { echo "FAIL: left in /dev/shm: $left"; failures=$((failures + 1)); }
echo "$checks ends of jobs, $failures failures"
[ "$failures" = 0 ]
