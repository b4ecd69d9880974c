#!/bin/bash
# Speed of generation with GPT-2 124M: weights read a second against the memory's rate, batch 8 against batch 1, a prompt of 512
# against its list of products, for f32 and bf16 weights (decode_bench), and beside PyTorch in alternating runs. One command:
#
#   test/bench/decode.sh BUILD     BUILD: the build folder
#
# Environment: THREADS (2), KERNELS (avx2 | avx512; what the processor has), ROUNDS (5), PAIRS (3), and for PyTorch TORCH_PYTHON (a
# python with torch and transformers) and TORCH_SCRIPT (torch_gpt2.py); without them that part is left out.
# Prints one JSON line a measurement on stdout.
set -eu -o pipefail
build=${1:?usage: decode.sh BUILD}
threads=${THREADS:-2} kernels=${KERNELS:-} rounds=${ROUNDS:-5} pairs=${PAIRS:-3}
python=${TORCH_PYTHON:-} script=${TORCH_SCRIPT:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

number() { # KEY DTYPE FILE
  grep -E "\"dtype\": \"(torch\.)?$2" "$3" | tail -1 | sed -E "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/"
}
report() { # DTYPE WHAT VALUE UNIT GOAL
  printf '{"bench":"decode 124m, %d threads","what":"%s, %s weights","value":%s,"unit":"%s","goal":"%s","command":"test/bench/decode.sh"}\n' \
    "$threads" "$2" "$1" "$3" "$4" "$5"
}

"$build/test/decode_bench" "$threads" "$kernels" "$rounds" >"$scratch/ours"
for dtype in f32 bf16; do
  report "$dtype" "tokens/s at batch 1" "$(number tokens_per_s "$dtype" "$scratch/ours")" "" ""
  report "$dtype" "weights read / read bandwidth" "$(number weights_over_bandwidth "$dtype" "$scratch/ours")" x ">= 0.75"
  report "$dtype" "batch 8 / batch 1 in tokens/s" "$(number batch8_over_batch1 "$dtype" "$scratch/ours")" x ">= 5"
  report "$dtype" "list of products / prompt of 512" "$(number list_over_prefill "$dtype" "$scratch/ours")" x ">= 0.75"
done
if [ -z "$python" ] || [ -z "$script" ] || [ ! -e "$script" ]; then
  echo "decode.sh: no TORCH_PYTHON and TORCH_SCRIPT: not measured beside torch" >&2
  exit 0
fi
for _ in $(seq "$pairs"); do
  "$build/test/decode_bench" "$threads" "$kernels" 1 >"$scratch/ours"
  "$python" "$script" --threads "$threads" --rounds 1 decode 124m-b4-t256 >"$scratch/torch"
  awk -v a="$(number tokens_per_s f32 "$scratch/ours")" -v b="$(number decode_tokens_per_s float32 "$scratch/torch")" \
    -v c="$(number tokens_per_s bf16 "$scratch/ours")" -v d="$(number decode_tokens_per_s bfloat16 "$scratch/torch")" \
    'BEGIN { print a / b, c / d }' >>"$scratch/ratios"
done
for column in 1 2; do
  dtype=f32
  [ "$column" = 1 ] || dtype=bf16
  report "$dtype" "tokens/s / torch" "$(sort -g -k "$column,$column" "$scratch/ratios" | awk -v c="$column" \
    '{ r[NR] = $c } END { printf "%.3f", (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2 }')" x ">= 1.2"
done
