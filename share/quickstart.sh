#!/bin/sh
# usage: sh share/quickstart.sh [FOLDER]
# From nothing to a trained model: installs missing packages, builds, and runs the main job on the text that lies beside
# this file: preprocess, train, stop half-way, resume, evaluate, generate. FOLDER (default: quickstart) receives the
# results; BUILD names the build folder (default: build). Running it again is safe: what is done is not done twice.
set -eu
cd "$(dirname "$0")/.."
work=${1:-quickstart}
build=${BUILD:-build}
data=share/shakespeare

say() { printf '\n== %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

say "Packages and build"
sh share/install-packages.sh build
# What was configured before is used as it is; a configuration that was broken off is done again.
if [ ! -f "$build/build.ninja" ] && [ ! -f "$build/Makefile" ]; then
  rm -f "$build/CMakeCache.txt"
  cmake -S . -B "$build" -G Ninja -DBUILD_TESTING=OFF >/dev/null
fi
cmake --build "$build" --target mt-preprocess mt-train mt-reshard mt-eval mt-generate
PATH="$PWD/$build/bin:$PATH"

mkdir -p "$work"
say "Text to token shards: the first nine tenths for training, the rest for validation"
head -c 1003854 "$data/input.txt" > "$work/train.txt"
tail -c 111540 "$data/input.txt" > "$work/valid.txt"
for part in train valid; do
  if [ -f "$work/$part.h5" ]; then
    echo "$work/$part.h5 is there already"
  else
    jq -Rs '{text: .}' -c "$work/$part.txt" |
      show mt-preprocess --input - --output-prefix "$work/$part" --vocab-file "$data/vocab.json" \
        --merge-file "$data/merges.txt"
  fi
done

# Training is stopped at iteration 500 on purpose (status 75: run me again), and resumed by the same command.
train() {
  show mt-train --config share/config/shakespeare.conf --train-data-path "$work/train.h5" --valid-data-path "$work/valid.h5" \
    --save "$work/run" --load "$work/run" --metrics "$work/metrics.jsonl" "$@"
}
if [ -d "$work/run/iter_0001000" ]; then
  say "The model is trained already"
else
  if [ ! -d "$work/run/iter_0000500" ]; then
    say "Train the first half, and stop"
    status=0
    train --exit-interval 500 || status=$?
    [ "$status" -eq 75 ] || { echo "quickstart: expected status 75 (stopped on request), found $status" >&2; exit 1; }
  fi
  say "Resume, and finish"
  train
fi

say "Perplexity on the text that it has not seen"
show mt-eval --load "$work/run" --valid-data "$work/valid.txt"

say "Text for a prompt"
show mt-generate --load "$work/run" --prompt 'ROMEO:' --greedy --num-tokens-to-generate 64
