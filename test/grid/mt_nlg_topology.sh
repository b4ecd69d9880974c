#!/usr/bin/env bash
# usage: test/grid/mt_nlg_topology.sh BUILD [SCRATCH]
# Megatron-Turing NLG's topology for real (Smith et al., arXiv:2201.11990, section 3.1): 280 ranks = 8-way tensor x 35-way
# pipeline, 105 layers (of width 64), 2 steps; loss and gradient norm must be those of one process, bit for bit with
# --reduction tree. Some minutes on two cores and about 10 GB of memory; not part of the suite.
. "$(dirname "$0")/mpi.sh"
build=${1:?usage: mt_nlg_topology.sh BUILD [SCRATCH]}
source "$(dirname "$0")/../cli/training_common.sh" "$(cd "$(dirname "$0")/../.." && pwd)" "$(realpath "$build")/bin" \
  "${2:-$(mktemp -d)}/nlg"
make_data
cat > nlg.conf <<'END'
data-path = data.h5
split = 100,0,0
num-layers = 105
hidden-size = 64
num-attention-heads = 8
max-position-embeddings = 16
seq-length = 16
micro-batch-size = 1
global-batch-size = 8
train-iters = 2
lr = 1e-3
eval-iters = 0
END
numbers() { grep -oE '"(step|loss|grad_norm)":[^,}]*' "$1"; }
"$bin/mt-train" --config nlg.conf --quiet --reduction tree --metrics one.jsonl --save one || fail "one process"
"$bin/mt-train" --config nlg.conf --quiet --metrics fast.jsonl || fail "one process, fast"
numbers one.jsonl > one.txt
begin=$(date +%s)
mpirun -n 280 "$bin/mt-train" --config nlg.conf --quiet --threads 1 --tensor-model-parallel-size 8 --hang-timeout 0 \
  --pipeline-model-parallel-size 35 --reduction tree --metrics grid.jsonl --save grid < /dev/null || fail "280 ranks, tree"
echo "280 ranks, tree: $(($(date +%s) - begin)) s"
numbers grid.jsonl > grid.txt
diff one.txt grid.txt && echo "tree: the bits of one process: $(tr '\n' ' ' < grid.txt)" || fail "280 ranks: other numbers"
diff <("$bin/mt-reshard" --list one/iter_0000002 --json | grep -oE '"digest":"[0-9a-f]*"') \
  <("$bin/mt-reshard" --list grid/iter_0000002 --json | grep -oE '"digest":"[0-9a-f]*"') > /dev/null &&
  echo "tree: the same weights and moments" || fail "280 ranks: other weights"
begin=$(date +%s)
mpirun -n 280 "$bin/mt-train" --config nlg.conf --quiet --threads 1 --tensor-model-parallel-size 8 --hang-timeout 0 \
  --pipeline-model-parallel-size 35 --metrics fastgrid.jsonl < /dev/null || fail "280 ranks, fast"
echo "280 ranks, fast: $(($(date +%s) - begin)) s"
paste -d: <(numbers fast.jsonl) <(numbers fastgrid.jsonl) | awk -F: '
  { d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || d > 1e-6 * $2) { print; bad = 1 } } END { exit bad || NR != 6 }' &&
  echo "fast: the numbers of one process" || fail "280 ranks, fast: other numbers"
finish
