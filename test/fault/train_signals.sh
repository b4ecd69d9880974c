#!/usr/bin/env bash
# Signals and sudden death: whatever moment is hit, the run that goes on ends with the same bytes, and one folder has
# one job.
source "$(dirname "$0")/../cli/training_common.sh"
kills=${MT_KILLS:-25}
make_data
long=("${train[@]}" --train-iters 300 --lr-decay-iters 300 --save-interval 20 --keep 2 --eval-interval 100)
"${long[@]}" --save whole --metrics whole.jsonl 2>err || { cat err; exit 1; }
wanted=whole/iter_0000300

# start NAME: the job in the background; waits until it has done a step or two.
start() {
  "${long[@]}" --save "$1" --load "$1" --metrics "$1.jsonl" 2>"$1.err" &
  job=$!
  for _ in $(seq 500); do
    [ -s "$1.jsonl" ] && break
    sleep 0.01
  done
}

for signal in USR1:75 TERM:75 INT:130; do
  name=sig${signal%%:*}
  # A background job of a script ignores SIGINT: perl sets it back to its default.
  if [ "${signal%%:*}" = INT ]; then
    perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "${long[@]}" --save "$name" --load "$name" --metrics "$name.jsonl" 2>"$name.err" &
    job=$!
    for _ in $(seq 500); do [ -s "$name.jsonl" ] && break; sleep 0.01; done
  else
    start "$name"
  fi
  kill "-${signal%%:*}" "$job"
  wait "$job"; status=$?
  checks=$((checks + 1))
  [ "$status" -eq "${signal##*:}" ] || fail "SIG$signal: status $status ($(tail -1 "$name.err"))"
  ls "$name" | grep -q '^iter_' || fail "SIG$signal: nothing was saved"
  "${long[@]}" --save "$name" --load "$name" --metrics "$name.jsonl" 2>err || fail "resuming after SIG$signal: $(tail -1 err)"
  same_folder "$wanted" "$name/iter_0000300" "after SIG$signal"
  [ "$(grep -c '"loss"' "$name.jsonl")" -eq 300 ] || fail "SIG$signal: metrics do not hold each step once"
done

# kill -9 at random moments of one run, each life a little longer than the last save.
RANDOM=${MT_SEED:-17}
echo "kill -9: $kills random moments, seed ${MT_SEED:-17}"
lives=0
for _ in $(seq "$kills"); do
  "${long[@]}" --save killed --load killed --metrics killed.jsonl 2>killed.err &
  job=$!
  sleep "0.$((RANDOM % 60 + 10))"
  kill -9 "$job" 2>/dev/null
  wait "$job" 2>/dev/null; status=$?
  lives=$((lives + 1))
  [ "$status" -eq 137 ] || [ "$status" -eq 0 ] || { fail "life $lives: status $status ($(tail -1 killed.err))"; break; }
  [ "$status" -eq 0 ] && { rm -rf killed killed.jsonl; }
done 2>/dev/null
"${long[@]}" --save killed --load killed --metrics killed.jsonl 2>err || fail "after $lives lives: $(tail -1 err)"
same_folder "$wanted" killed/iter_0000300 "after $lives lives"
[ "$(grep -c '"loss"' killed.jsonl)" -eq 300 ] || fail "metrics after kills: $(grep -c '"loss"' killed.jsonl) steps"
[ "$(ls -A killed | grep -c tmp)" -eq 0 ] || fail "temporary folders are left: $(ls -A killed)"

# Two jobs, one folder or one file of metrics: the second is refused, the first is not disturbed.
start two
expect 4 'two.jsonl.*another job' "${long[@]}" --save three --load three --metrics two.jsonl
expect 4 "two.*($job|lock|holds|another)" "${long[@]}" --save two --load two
wait "$job" || fail "the first of two jobs: $(tail -1 two.err)"
same_folder "$wanted" two/iter_0000300 "the first of two jobs"
[ "$(grep -c '"loss"' two.jsonl)" -eq 300 ] || fail "the metrics of the first of two jobs: $(grep -c '"loss"' two.jsonl) steps"

# A disk that fills: status 4, and the checkpoint before is whole. Needs the right to mount.
mkdir small && if mount -t tmpfs -o size=2m none small 2>/dev/null; then
  expect 4 'No space left on device.*iteration' "${train[@]}" --save small/run --load small/run --save-interval 1
  ls small/run | grep -q tmp && fail "a partial checkpoint is left on the full disk"
  newest=$(ls small/run | grep '^iter_' | tail -1)
  cp -r "small/run/$newest" kept
  umount small
  expect 0 '' "${train[@]}" --save uninterrupted
  expect 0 '' "${train[@]}" --load kept --save after
  same_folder uninterrupted/iter_0000012 after/iter_0000012 "after a full disk, from $newest"
else
  echo "tmpfs cannot be mounted: the full disk is not tried"
fi
finish
