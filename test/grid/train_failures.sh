#!/usr/bin/env bash
# mt-train on ranks: signals that reach one rank or all, ranks that die or hang, ranks that differ, nodes that do not fit.
source "$(dirname "$0")/../cli/training_common.sh"
. "$source/test/grid/mpi.sh"
make_data
sed -i '/^threads/d; /^train-iters/d; /^eval-interval/d' tiny.conf
host=$(hostname)
long=("$bin/mt-train" --config tiny.conf --train-iters 300 --lr-decay-iters 300 --save-interval 100 --eval-interval 100 --threads 1)
mpirun -n 2 "${long[@]}" --save whole 2>err || { tail -3 err; exit 1; }

# start NAME RANKS OPTION...: the job in the background, its processes in $ranks; waits until it has done some steps.
start() {
  local name=$1 count=$2
  shift 2
  mpirun -n "$count" "${long[@]}" --save "$name" --load "$name" --metrics "$name.jsonl" "$@" 2>"$name.err" &
  job=$!
  for _ in $(seq 1000); do
    [ -s "$name.jsonl" ] && [ "$(wc -l <"$name.jsonl")" -ge 5 ] && break
    sleep 0.01
  done
  ranks=($(pgrep -P "$job" | sort -n))
  [ "${#ranks[@]}" = "$count" ] || fail "$name: ${#ranks[@]} processes, expected $count"
}
# ended NAME STATUS SECONDS: the job ends so, soon.
ended() {
  local begin=$SECONDS found
  wait "$job"; found=$?
  checks=$((checks + 1))
  [ "$found" = "$2" ] || fail "$1: status $found, expected $2: $(grep '^mt-train' "$1.err" | tail -2)"
  [ $((SECONDS - begin)) -le "$3" ] || fail "$1: ended after $((SECONDS - begin)) s"
}
said() { grep -qE "$2" "$1.err" || fail "$1: no \"$2\" in: $(grep '^mt-train' "$1.err" | tail -2)"; }
errors() { [ "$(grep -c 'error:' <(grep '^mt-train' "$1.err"))" = "$2" ] || fail "$1: $(grep '^mt-train.*error:' "$1.err")"; }

# USR1 by the launcher to all, TERM to one rank that is not the first, USR1 to the first alone: one stop, one saved step.
for how in all:USR1:10 1:TERM:15 0:USR1:10; do
  IFS=: read -r whom signal number <<<"$how"
  name=signal$whom$signal
  start "$name" 2
  if [ "$whom" = all ]; then kill "-$signal" "$job"; else kill "-$signal" "${ranks[$whom]}"; fi
  ended "$name" 75 20
  [ "$(grep -c "stopped by signal $number at iteration" "$name.err")" = 1 ] || fail "$name: $(tail -3 "$name.err")"
  [ ! -e "$name/iter_0000300" ] || fail "$name: had ended before the signal"
  mpirun -n 2 "${long[@]}" --save "$name" --load "$name" --metrics "$name.jsonl" 2>"$name.err" || fail "$name: resuming: $(tail -3 "$name.err")"
  same_folder whole/iter_0000300 "$name/iter_0000300" "after $how"
  [ "$(grep -c '"loss"' "$name.jsonl")" = 300 ] || fail "$name: metrics do not hold each step once"
done

# A rank is killed; the run that goes on ends with the same bytes.
start killed 2
kill -KILL "${ranks[1]}"
ended killed 137 5
said killed 'rank 1 .*signal 9'
errors killed 0
mpirun -n 2 "${long[@]}" --save killed --load killed 2>killed.err || fail "killed: resuming: $(tail -3 killed.err)"
same_folder whole/iter_0000300 killed/iter_0000300 "after a kill"

# A rank is stopped: in tensor, pipeline and data groups of two it is named.
for axis in tensor pipeline data; do
  case $axis in tensor) grid=(--tensor-model-parallel-size 2) ;; pipeline) grid=(--pipeline-model-parallel-size 2) ;; data) grid=() ;; esac
  start "stopped$axis" 2 "${grid[@]}" --hang-timeout 1
  kill -STOP "${ranks[1]}"
  ended "stopped$axis" 6 6
  said "stopped$axis" "error: no progress for 1 s \(--hang-timeout\): rank 1 on $host is stopped, in .*\(training, step [0-9]+\); rank 0 is in .* of "
  errors "stopped$axis" 1
done

# Not alike: refused before anything is written.
checks=$((checks + 1))
mpirun -n 1 "${long[@]}" --save differ : -n 1 "${long[@]}" --save differ --seed 7 2>err
[ $? = 6 ] && grep -q 'ranks disagree on --seed: expected 1234 .* found 7 on rank 1' err || fail "options: $(grep '^mt-train' err)"
cp data.h5 other.h5
mkdir a b && cp data.h5 a/d.h5 && head -c 90000 docs.jsonl >less.jsonl
"$bin/mt-preprocess" --input less.jsonl --output-prefix b/d --vocab-file "$source/share/shakespeare/vocab.json" \
  --merge-file "$source/share/shakespeare/merges.txt" --append-eod 2>/dev/null
sed '/^data-path/d' tiny.conf >nodata.conf
checks=$((checks + 1))
data=("$bin/mt-train" --config "$work/nodata.conf" --train-iters 3 --lr-decay-iters 3 --data-path d.h5 --threads 1 --save "$work/differ")
mpirun -wdir "$work/a" -n 1 "${data[@]}" : -wdir "$work/b" -n 1 "${data[@]}" 2>err
[ $? = 6 ] && grep -q 'ranks disagree on the training data: expected' err || fail "data: $(grep '^mt-train' err)"
ls differ 2>/dev/null | grep -q iter_ && fail "saved by ranks that differ"

# Placement: nodes of one rank each.
export MT_RANKS_PER_NODE=1
checks=$((checks + 2))
short=("$bin/mt-train" --config tiny.conf --train-iters 2 --lr-decay-iters 2 --lr-warmup-iters 0 --threads 1 --tensor-model-parallel-size 2)
sed -i '/^lr-warmup/d' tiny.conf
mpirun -n 2 "${short[@]}" --save strict --strict-placement 2>err
[ $? = 2 ] && grep -q "error: --tensor-model-parallel-size 2: 1 of 1 tensor groups stand on several nodes (the first: ranks 0 to 1 on $host, $host).*(--strict-placement)" err ||
  fail "strict placement: $(grep '^mt-train' err)"
[ ! -e strict ] || fail "something was written in spite of --strict-placement"
mpirun -n 2 "${short[@]}" --save across 2>err || fail "across nodes: $(grep '^mt-train' err)"
[ "$(grep -c 'warning: --tensor-model-parallel-size 2: 1 of 1 tensor groups' err)" = 1 ] || fail "no warning: $(cat err)"
unset MT_RANKS_PER_NODE
mpirun -n 2 "${short[@]}" --save inside --strict-placement 2>err || fail "inside a node: $(grep '^mt-train' err)"
same_folder inside/iter_0000002 across/iter_0000002 "through messages"
finish
