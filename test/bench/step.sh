#!/bin/bash
# Speed of the training step: products beside OpenBLAS's, the step, AdamW and the forward pass beside the list of products
# and the memory's rate (step_bench), and beside PyTorch in alternating runs. One command:
#
#   test/bench/step.sh BUILD [SHAPE...]     BUILD: the build folder
#
# Environment: THREADS (2), KERNELS (avx2 | avx512; what the processor has), ROUNDS (5), PAIRS (3), and for PyTorch
# TORCH_PYTHON (a python with torch and transformers) and TORCH_SCRIPT (torch_gpt2.py); without them that part is left out.
# Prints one JSON line a measurement on stdout.
set -eu -o pipefail
build=${1:?usage: step.sh BUILD [SHAPE...]}
shift
[ $# -gt 0 ] || set -- 124m-b4-t256 124m-b4-t64 small-b8-t256
threads=${THREADS:-2} kernels=${KERNELS:-} rounds=${ROUNDS:-5} pairs=${PAIRS:-3}
python=${TORCH_PYTHON:-} script=${TORCH_SCRIPT:-}
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
[ "$kernels" != avx2 ] || export OPENBLAS_CORETYPE=Haswell # the same instructions for both
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

ours() { # SHAPE ROUNDS
  "$build/test/step_bench" "$1" "$threads" "$kernels" "$2"
}
# The number behind "KEY": in lines with the PATTERN.
number() { # KEY PATTERN FILE
  grep -F "$2" "$3" | tail -1 | sed -E "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/"
}
goal() { case $1 in 124m-b4-t256) echo 1.2 ;; *) echo 1.1 ;; esac; }

for shape in "$@"; do
  ours "$shape" "$rounds" | tee "$scratch/ours"
  if [ -z "$python" ] || [ -z "$script" ] || [ ! -e "$script" ]; then
    echo "step.sh: no TORCH_PYTHON and TORCH_SCRIPT: not measured beside torch" >&2
    continue
  fi
  : >"$scratch/ratios"
  for _ in $(seq "$pairs"); do
    ours "$shape" 3 >"$scratch/ours"
    "$python" "$script" --threads "$threads" --rounds 3 step "$shape" >"$scratch/torch"
    awk -v a="$(number value '"training step"' "$scratch/ours")" -v b="$(number train_tokens_per_s peer "$scratch/torch")" \
      -v c="$(number value '"what":"forward"' "$scratch/ours")" -v d="$(number forward_tokens_per_s peer "$scratch/torch")" \
      'BEGIN { print a / b, c / d }' >>"$scratch/ratios"
  done
  for column in 1 2; do
    sort -g -k "$column,$column" "$scratch/ratios" | awk -v c="$column" -v shape="$shape" -v threads="$threads" -v goal="$(goal "$shape")" '
      { r[NR] = $c }
      END {
        printf "{\"bench\":\"step %s, %d threads\",\"what\":\"%s, tokens/s / torch\",\"value\":%.3f,\"unit\":\"x\",\"goal\":\"%s\",", \
          shape, threads, c == 1 ? "training step" : "forward", (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2, c == 1 ? ">= " goal : ""
        printf "\"least\":%.3f,\"most\":%.3f,\"rounds\":%d,\"command\":\"test/bench/step.sh\"}\n", r[1], r[NR], NR
      }'
  done
done
