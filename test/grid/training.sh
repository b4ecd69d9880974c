#!/usr/bin/env bash
# mt-train as real MPI processes: a set of grids in which every pair of choices meets, each against one process. In tree
# mode loss, gradient norm and the digest of every tensor of the checkpoint are the same; in fast mode the numbers.
. "$(dirname "$0")/mpi.sh"
source "$(dirname "$0")/../cli/training_common.sh"
cases=$(realpath "$2/../test/grid_cases") || exit 1
make_data

cat > model.conf <<'END'
data-path = data.h5
split = 90,10,0
num-layers = 8
hidden-size = 24
ffn-hidden-size = 40
num-attention-heads = 8
max-position-embeddings = 16
seq-length = 16
micro-batch-size = 1
global-batch-size = 16
train-iters = 10
lr = 1e-3
eval-iters = 1
END
model=("$bin/mt-train" --config model.conf --quiet)
# The numbers of a run: step, loss, norm, validation.
numbers() { grep -oE '"(step|loss|grad_norm|validation_loss)":[^,}]*' "$1"; }
digests() { "$bin/mt-reshard" --list "$1" --json | grep -oE '"digest":"[0-9a-f]*"'; }

for reduction in fast tree; do
  "${model[@]}" --reduction $reduction --save one-$reduction --metrics one-$reduction.jsonl || fail "one process, $reduction"
  numbers one-$reduction.jsonl > one-$reduction.txt
  [ "$(grep -c '"loss"' one-$reduction.txt)" = 10 ] || fail "one process, $reduction: $(cat one-$reduction.txt)"
done
digests one-tree/iter_0000010 > one.digests
[ "$(wc -l < one.digests)" -gt 300 ] || fail "digests: $(head -3 one.digests)"

run=0
while read -r -a line; do
  ranks=${line[0]} options=("${line[@]:1}") run=$((run + 1))
  name=r$run
  timeout 120 mpirun -n "$ranks" "${model[@]}" "${options[@]}" --threads 1 --save $name --metrics $name.jsonl < /dev/null \
    > out 2> err || { fail "$ranks ranks, ${options[*]}: status $?"; cat err; continue; }
  numbers $name.jsonl > $name.txt
  if [[ " ${options[*]} " == *" tree "* ]]; then
    diff one-tree.txt $name.txt || fail "$ranks ranks, ${options[*]}: other numbers than one process"
    digests $name/iter_0000010 | diff one.digests - > /dev/null || fail "$ranks ranks, ${options[*]}: other weights or moments"
  else
    paste -d: one-fast.txt $name.txt | awk -F: -v name="$ranks ranks, ${options[*]}" '
      { d = $2 - $4; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; if ($1 != $3 || d > 1e-6 * s) { print name ": " $0; bad = 1 } }
      END { exit bad || NR < 30 }' || fail "$ranks ranks, ${options[*]}: other numbers than one process"
  fi
  rm -rf $name $name.jsonl
done < <("$cases")
[ "$run" -ge 15 ] || fail "only $run grids were run"
echo "$run grids"

# A run that changes its grid on the way is the run of one process.
tree=("${model[@]}" --reduction tree --save walk --load walk)
step() { local until=$1 ranks=$2; shift 2; timeout 120 mpirun -n "$ranks" "${tree[@]}" --exit-interval "$until" --threads 1 "$@" \
  < /dev/null > out 2> err; }
step 1 4 --tensor-model-parallel-size 2 --use-distributed-optimizer; [ $? = 75 ] || { fail "step 1"; cat err; }
step 2 4 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1; [ $? = 75 ] || { fail "step 2"; cat err; }
step 3 8 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer; [ $? = 75 ] || { fail "step 3"; cat err; }
"${tree[@]}" || fail "step 4"
digests walk/iter_0000010 | diff one.digests - > /dev/null || fail "a run over four grids: other weights or moments"

# A run goes on from its converted checkpoint as from its own: cut for another grid, and for that again.
tree=("${model[@]}" --reduction tree --save from --load from)
step 4 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2; [ $? = 75 ] || { fail "before the conversion"; cat err; }
mkdir to
"$bin/mt-reshard" --quiet from step4 --tensor-model-parallel-size 4 --use-distributed-optimizer --data-parallel-size 2 &&
  "$bin/mt-reshard" --quiet step4 to/iter_0000004 --pipeline-model-parallel-size 8 || fail "conversion"
tree=("${model[@]}" --reduction tree --save to --load to)
step 7 2 --tensor-model-parallel-size 2; [ $? = 75 ] || { fail "after the conversion"; cat err; }
"${tree[@]}" || fail "after the conversion, one process"
digests to/iter_0000010 | diff one.digests - > /dev/null || fail "a run from a converted checkpoint: other weights or moments"

# What does not divide is refused by all before anything is written.
refused() { local text=$1 ranks=$2; shift 2; timeout 60 mpirun -n "$ranks" "${model[@]}" --save refused "$@" < /dev/null > out 2> err
  local status=$?; [ $status = 2 ] && grep -qE -- "$text" err || { fail "$*: status $status"; cat err; }; [ ! -e refused ] || fail "$*: wrote"; }
refused '3 ranks: not a multiple of tensor 2 x pipeline 1 = 2' 3 --tensor-model-parallel-size 2
refused 'num-attention-heads 8: not divisible by --tensor-model-parallel-size 3: 8 = 2 \* 3 \+ 2' 3 --tensor-model-parallel-size 3
refused 'num-layers 8: not divisible by --pipeline-model-parallel-size 3: 8 = 2 \* 3 \+ 2' 3 --pipeline-model-parallel-size 3
refused 'global-batch-size 16: not divisible by data parallel size 3 x --micro-batch-size 1: 16 = 5 \* 3 \+ 1' 3
refused 'seq-length 15: not divisible by --tensor-model-parallel-size 2: 15 = 7 \* 2 \+ 1' 2 --tensor-model-parallel-size 2 \
  --sequence-parallel --seq-length 15
refused 'reduction tree: --global-batch-size 16: not divisible by --virtual-shards 8 x --micro-batch-size 4: 16 = 0 \* 32 \+ 16' 2 \
  --reduction tree --micro-batch-size 4
finish
