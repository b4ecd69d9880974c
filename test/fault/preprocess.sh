#!/bin/bash
# mt-preprocess when the system fails: every call on the shard or its spool fails in turn, the process is killed before
# each of them and at random times, and the disk is full at every fill level. No part of a shard ever has the final
# name, a former shard stays whole until the new one is, a failure is status 4 and one line, and nothing blocks a rerun.
set -u
source=$1 program=$2/mt-preprocess scratch=$3
rm -rf "$scratch" && mkdir -p "$scratch" && cd "$scratch" || exit 1
if ! command -v strace >/dev/null || ! strace -o /dev/null true 2>/dev/null; then
  echo "SKIP: strace cannot trace here"
  exit 77
fi
vocabulary=$source/test/data/tokenizer/gpt2
failures=0 cases=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}
run=("$program" --vocab-file "$vocabulary/vocab.json" --merge-file "$vocabulary/merges.txt" --input in.jsonl
  --append-eod --workers 1 --force --quiet)

for i in $(seq 3000); do echo "{\"text\": \"document $i $RANDOM of some words that are not much longer than this\"}"; done > in.jsonl
echo '{"text": "what stood there before"}' > old.jsonl
"${run[@]}" --input old.jsonl --output-prefix old && "${run[@]}" --output-prefix new || exit 1

# What has the final name: none, old, new, or partial.
state() {
  if [ ! -e d/out.h5 ]; then echo none
  elif cmp -s d/out.h5 old.h5; then echo old
  elif cmp -s d/out.h5 new.h5; then echo new
  else echo partial; fi
}
prepare() { # prepare none|old
  rm -rf d
  mkdir d
  [ "$1" = none ] || cp old.h5 d/out.h5
}
check_failure() { # check_failure WHAT BEFORE STATUS
  local after
  cases=$((cases + 1))
  after=$(state)
  if [ "$3" = 0 ]; then
    [ "$after" = new ] || fail "$1: status 0, the shard is $after"
  elif [ "$3" = 4 ]; then
    # After the rename only the sync of the directory can fail: the new shard is there, whole.
    [ "$after" = "$2" ] || [ "$after" = new ] || fail "$1: the shard is $after, was $2"
    [ "$(wc -l < message)" = 1 ] || fail "$1: not one line: $(cat message)"
    grep -q '^mt-preprocess: error: ' message || fail "$1: $(cat message)"
    [ -z "$(ls -A d | grep -v '^out.h5$')" ] || fail "$1 left $(ls -A d)"
  else
    fail "$1: status $3: $(cat message)"
  fi
}

for before in none old; do
  for call in openat write pwrite64 pread64 ftruncate fsync renameat2 rename; do
    prepare $before
    strace -qq -y -o trace -e trace=$call "${run[@]}" --output-prefix d/out 2>/dev/null
    # Those that touch the folder d; what is opened before is the loader's and the vocabulary's.
    for n in $(grep -n "$scratch/d\|d/" trace | cut -d: -f1); do
      prepare $before
      strace -qq -y -o trace2 -e trace=$call -e inject=$call:error=EIO:when=$n "${run[@]}" --output-prefix d/out 2>message
      check_failure "$call $n of $before" $before $?
      grep -q INJECTED trace2 || fail "$call $n was not injected"
      prepare $before
      (strace -qq -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$n "${run[@]}" --output-prefix d/out; :) 2>/dev/null
      cases=$((cases + 1))
      after=$(state)
      [ "$after" = "$before" ] || [ "$after" = new ] || fail "killed at $call $n: the shard is $after, was $before"
      "${run[@]}" --output-prefix d/out 2>message || fail "rerun after a kill at $call $n: $(cat message)"
      [ "$(state)" = new ] || fail "rerun after a kill at $call $n: the shard is $(state)"
    done
  done
done
[ $cases -gt 60 ] || fail "only $cases cases"

# The system gives no more threads: those that run are joined, and nothing is left.
for n in 1 3; do
  prepare none
  strace -f -qq -o trace2 -e trace=clone,clone3 -e inject=clone,clone3:error=EAGAIN:when=$n+ \
    "${run[@]/#1/4}" --output-prefix d/out 2>message
  check_failure "thread $n refused" none $?
  grep -q INJECTED trace2 || fail "thread $n was not refused"
  grep -q "cannot start 4 threads (--workers): $((n - 1)) started" message || fail "thread $n: $(cat message)"
done

# Killed at random times.
for round in $(seq 20); do
  prepare old
  (timeout -s KILL "0.0$((RANDOM % 90 + 10))" "${run[@]}" --output-prefix d/out; :) 2>/dev/null
  cases=$((cases + 1))
  case $(state) in old|new) ;; *) fail "killed in round $round: the shard is $(state)" ;; esac
done

# A disk that is full, at many fill levels.
if mkdir -p disk && mount -t tmpfs -o size=4m tmpfs disk 2>/dev/null; then
  trap 'umount "$scratch/disk"' EXIT
  size=$(($(stat -c %s new.h5) / 1024 + 200))
  for free in $(seq 4 $((size / 40 + 1)) $size) $((4 * size)); do
    rm -rf disk/* disk/.o* d
    ln -sfn disk d
    mount -o remount,size=$((free))k disk 2>/dev/null || continue
    "${run[@]}" --output-prefix disk/out 2>message
    check_failure "a disk of $free KiB" none $?
  done
  [ "$(state)" = new ] || fail "a disk that is large enough: the shard is $(state)"
else
  echo "note: no tmpfs can be mounted here: the full disk was not tried"
fi
echo "$cases cases, $failures failures"
exit $((failures > 0))
