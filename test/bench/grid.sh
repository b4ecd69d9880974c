#!/bin/bash
# Ranks on one machine: two ranks of one thread beside one rank of two threads, in alternating runs of mt-train; the cost of
# --reduction tree; and weak scaling (Shoeybi et al., arXiv:1909.08053, section 5.1: equal work a rank, t1 / tN). One command:
#
#   test/bench/grid.sh BUILD [tensor|data|pipeline|tree|weak]...
#
# Environment: ROUNDS (3), STEPS (6) of each run, of which the first is left out, MODEL (share/config/gpt-124m.conf), SEQ (64),
# TOKENIZER (a folder with vocab.json and merges.txt of GPT-2), MOST (2): the most ranks of weak scaling. Prints one JSON line a measurement on stdout.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../grid/mpi.sh"
build=$(realpath "${1:?usage: grid.sh BUILD [tensor|data|pipeline|tree|weak]...}")
shift
[ $# -gt 0 ] || set -- tensor data pipeline tree weak
rounds=${ROUNDS:-3} steps=${STEPS:-6} seq=${SEQ:-64} most=${MOST:-2}
model=${MODEL:-$here/../../share/config/gpt-124m.conf}
tokenizer=${TOKENIZER:-$here/../../../shared/data/tokenizers/gpt2}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
head -c 300000 "$here/../../share/shakespeare/input.txt" > text.txt
"$build/bin/mt-preprocess" --quiet --plain --input text.txt --output-prefix data --vocab-file "$tokenizer/vocab.json" \
  --merge-file "$tokenizer/merges.txt"
# The shapes of the model, not its recipe; the vocabulary is the tokenizer's.
grep -E '^(num-layers|hidden-size|num-attention-heads|max-position-embeddings|ffn-hidden-size)' "$model" > shape.conf

# Tokens a second of the median step: RANKS THREADS options.
rate() {
  local ranks=$1 threads=$2
  shift 2
  local launch=()
  [ "$ranks" = 1 ] || launch=(mpirun --bind-to none -n "$ranks")
  rm -f m.jsonl
  "${launch[@]}" "$build/bin/mt-train" --config shape.conf --data-path data.h5 --split 100,0,0 --seq-length "$seq" --eval-iters 0 \
    --lr 1e-5 --train-iters "$steps" --threads "$threads" --quiet --metrics m.jsonl "$@" < /dev/null
  grep -oE '"tokens_per_second":[0-9.e+]*' m.jsonl | cut -d: -f2 | tail -n +2 | sort -g |
    awk '{ r[NR] = $1 } END { print r[int((NR + 1) / 2)] }'
}
# Ratios of two commands in alternating runs: NAME GOAL, then two functions' names.
ratio() {
  : > ratios
  for _ in $(seq "$rounds"); do
    local a b
    a=$($3) b=$($4)
    awk -v a="$a" -v b="$b" 'BEGIN { print a / b, a, b }' >> ratios
  done
  sort -g ratios | awk -v what="$1" -v goal="$2" '{ r[NR] = $1; a[NR] = $2; b[NR] = $3 }
    END { m = int((NR + 1) / 2)
      printf "{\"bench\":\"grid\",\"what\":\"%s\",\"value\":%.3f,\"unit\":\"x\",\"goal\":\"%s\",\"least\":%.3f,\"most\":%.3f,\"rounds\":%d,\"command\":\"test/bench/grid.sh\",\"tokens_per_second\":%.0f,\"beside\":%.0f}\n",
        what, r[m], goal, r[1], r[NR], NR, a[m], b[m] }'
}
one() { rate 1 2 --micro-batch-size 4 --global-batch-size 4; }
tensor() { rate 2 1 --micro-batch-size 4 --global-batch-size 4 --tensor-model-parallel-size 2; }
data() { rate 2 1 --micro-batch-size 2 --global-batch-size 4 --use-distributed-optimizer; }
one_of_8() { rate 1 2 --micro-batch-size 1 --global-batch-size 8; }
pipeline() { rate 2 1 --micro-batch-size 1 --global-batch-size 8 --pipeline-model-parallel-size 2; }
one_of_32() { rate 1 2 --micro-batch-size 4 --global-batch-size 32; }
tree() { rate 1 2 --micro-batch-size 4 --global-batch-size 32 --reduction tree; }
tree_tensor() { rate 2 1 --micro-batch-size 4 --global-batch-size 32 --reduction tree --tensor-model-parallel-size 2; }
fast_tensor() { rate 2 1 --micro-batch-size 4 --global-batch-size 32 --tensor-model-parallel-size 2; }

# What the split of the layers and the bubble leave of two ranks' rate over one rank's: stage costs by FLOPs (a layer 12 h^2,
# the head h V; s is short), m micro-batches: one rank m (a + b) / 2 a step on two cores, two ranks m max(a, b) + min(a, b).
bound() {
  local vocabulary
  vocabulary=$(grep -c '' "$tokenizer/merges.txt")
  awk -v m=8 -v v="$((vocabulary + 256))" -F' *= *' '
    $1 == "num-layers" { l = $2 } $1 == "hidden-size" { h = $2 }
    END { a = l / 2 * 12 * h * h; b = a + h * v; hi = a > b ? a : b; lo = a + b - hi
      printf "%.3f", m * (a + b) / 2 / (m * hi + lo) }' shape.conf
}

for what in "$@"; do
  case $what in
    tensor) ratio "2 tensor ranks / 1 rank of 2 threads, 4 x $seq" ">= 0.85" tensor one ;;
    data) ratio "2 data ranks with ZeRO-1 / 1 rank of 2 threads, 4 x $seq" ">= 0.90" data one ;;
    pipeline)
      limit=$(bound)
      ratio "2 stages, 8 micro-batches / 1 rank of 2 threads; split and bubble allow $limit" \
        ">= $(awk -v b="$limit" 'BEGIN { printf "%.3f", 0.9 * b }')" pipeline one_of_8 ;;
    tree)
      ratio "--reduction tree / fast, 1 rank of 2 threads, 32 x $seq" "" tree one_of_32
      ratio "--reduction tree / fast, 2 tensor ranks, 32 x $seq" "" tree_tensor fast_tensor ;;
    weak)
      base=$(rate 1 1 --micro-batch-size 4 --global-batch-size 4)
      for ranks in $(seq 2 "$most"); do
        many=$(rate "$ranks" 1 --micro-batch-size 4 --global-batch-size $((4 * ranks)))
        awk -v n="$ranks" -v a="$base" -v b="$many" 'BEGIN {
          printf "{\"bench\":\"grid\",\"what\":\"weak scaling, %d data ranks: t1 / tN (two points only on two cores)\",\"value\":%.3f,\"unit\":\"x\",\"goal\":\"\",\"rounds\":1,\"command\":\"test/bench/weak_scaling.sh\"}\n", n, b / a / n }'
      done ;;
    *) echo "grid.sh: unknown measurement $what" >&2; exit 2 ;;
  esac
done
