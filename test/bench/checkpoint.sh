#!/bin/bash
# Checkpoints of a 124M model beside cp, cat and a copy in memory (checkpoint_bench.cc). One command:
#
#   test/bench/checkpoint.sh BUILD [SCRATCH]     BUILD: the build folder; SCRATCH: BUILD/test/scratch
#
# Environment: THREADS (2), PAIRS (3), and for the first token of mt-generate TOKENIZER, a folder with GPT-2's vocab.json and
# merges.txt; without them that part is left out. Takes 8 GB on the disk of SCRATCH and 8 GB of memory.
# Prints one JSON line a measurement on stdout.
set -eu -o pipefail
build=${1:?usage: checkpoint.sh BUILD [SCRATCH]}
parent=${2:-$build/test/scratch}
mkdir -p "$parent"
scratch=$(mktemp -d "$parent/checkpoint.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
tokenizer=${TOKENIZER:-$(dirname "$0")/../../../shared/data/tokenizers/gpt2}
generate=()
if [ -f "$tokenizer/vocab.json" ] && [ -f "$tokenizer/merges.txt" ]; then
  generate=("$build/bin/mt-generate" "$tokenizer/vocab.json" "$tokenizer/merges.txt")
else
  echo "checkpoint.sh: no vocab.json and merges.txt in $tokenizer: the first token is not measured" >&2
fi
"$build/test/checkpoint_bench" "$scratch" "${THREADS:-2}" "${PAIRS:-3}" "${generate[@]}"
