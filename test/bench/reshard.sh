#!/bin/bash
# mt-reshard on a checkpoint of a 124M model with its moments (1.5 GB, tensor 2 x pipeline 2), in alternating runs: a
# conversion to tensor 4 beside cp -r and a sync of the same bytes, --verify beside cat. One command:
#
#   test/bench/reshard.sh BUILD [SCRATCH]     BUILD: the build folder; SCRATCH: BUILD/test/scratch
#
# Environment: ROUNDS (3), THREADS (2), MODEL (share/config/gpt-124m.conf), TOKENIZER (a folder with vocab.json and merges.txt of
# GPT-2). What is read lies in the page cache. Takes 6 GB on the disk of SCRATCH. Prints one JSON line a measurement on stdout.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../grid/mpi.sh"
build=$(realpath "${1:?usage: reshard.sh BUILD [SCRATCH]}")
parent=${2:-$build/test/scratch}
rounds=${ROUNDS:-3} threads=${THREADS:-2}
model=${MODEL:-$here/../../share/config/gpt-124m.conf}
tokenizer=${TOKENIZER:-$here/../../../shared/data/tokenizers/gpt2}
mkdir -p "$parent"
scratch=$(mktemp -d "$parent/reshard.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
head -c 20000 "$here/../../share/shakespeare/input.txt" > text.txt
"$build/bin/mt-preprocess" --quiet --plain --input text.txt --output-prefix data --vocab-file "$tokenizer/vocab.json" \
  --merge-file "$tokenizer/merges.txt"
grep -E '^(num-layers|hidden-size|num-attention-heads|max-position-embeddings|ffn-hidden-size)' "$model" > shape.conf
mpirun --oversubscribe -n 4 "$build/bin/mt-train" --config shape.conf --data-path data.h5 --split 100,0,0 --seq-length 64 \
  --eval-iters 0 --lr 1e-5 --train-iters 1 --micro-batch-size 1 --global-batch-size 1 --threads 1 --quiet \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --save run --save-interval 1 < /dev/null
from=$scratch/run/iter_0000001
[ -f "$from/manifest.json" ] || { echo "reshard.sh: no checkpoint" >&2; exit 1; }

seconds() { # COMMAND...
  local begin end
  begin=$(date +%s%N)
  "$@" > /dev/null
  end=$(date +%s%N)
  echo $((end - begin))
}
copied() { cp -r "$from" copy && find copy -type f -exec sync {} + && sync copy; }
converted() { "$build/bin/mt-reshard" --quiet --threads "$threads" "$from" to --tensor-model-parallel-size 4; }
printed() { find "$from" -type f -exec cat {} +; }
verified() { "$build/bin/mt-reshard" --quiet --threads "$threads" --verify "$from"; }
printed > /dev/null && sync
# NAME GOAL A B: of the times of two functions, A / B.
ratio() {
  : > ratios
  for _ in $(seq "$rounds"); do
    a=$(seconds "$3")
    rm -rf copy to && sync
    b=$(seconds "$4")
    rm -rf copy to && sync
    awk -v a="$a" -v b="$b" 'BEGIN { print a / b, a, b }' >> ratios
  done
  sort -g ratios | awk -v what="$1" -v goal="$2" -v threads="$threads" '{ r[NR] = $1; a[NR] = $2; b[NR] = $3 }
    END { m = int((NR + 1) / 2)
      printf "{\"bench\":\"mt-reshard, 1.5 GB, %d threads\",\"what\":\"%s\",\"value\":%.3f,\"unit\":\"x\",\"goal\":\"%s\",\"least\":%.3f,\"most\":%.3f,\"rounds\":%d,\"command\":\"test/bench/reshard.sh\",\"seconds\":%.2f,\"beside\":%.2f}\n",
        threads, what, r[m], goal, r[1], r[NR], NR, a[m] / 1e9, b[m] / 1e9 }'
}
ratio "time of tp 2 x pp 2 -> tp 4 / cp -r + fsync" "<= 1.25" converted copied
ratio "rate of --verify / cat" ">= 0.8" printed verified
