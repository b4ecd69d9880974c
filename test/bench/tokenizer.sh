#!/bin/bash
# Speed of mt-preprocess from JSON lines to shard, start-up left out, beside gigatoken and tokenizers in alternating runs, beside
# `LC_ALL=C wc -w`, and with two threads beside one. One command:
#
#   test/bench/tokenizer.sh BUILD GPT2_DIR FILE.jsonl     GPT2_DIR holds vocab.json and merges.txt
#
# Environment: PAIRS (5), and for the peers PEERS_PYTHON (a python with gigatoken, tiktoken and tokenizers) and PEERS_SCRIPT
# (tokenizer_peers.py); without them that part is left out. Prints one JSON line a measurement on stdout, medians of PAIRS.
set -eu -o pipefail
build=${1:?usage: tokenizer.sh BUILD GPT2_DIR FILE.jsonl} gpt2=${2:?GPT2_DIR} file=${3:?FILE.jsonl}
pairs=${PAIRS:-5} python=${PEERS_PYTHON:-} script=${PEERS_SCRIPT:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo '{"text": "a"}' >"$scratch/tiny.jsonl"

seconds() { # CORES COMMAND...
  local start=$EPOCHREALTIME
  taskset -c "$1" "${@:2}" >/dev/null
  awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}
ours() { # CORES WORKERS INPUT...
  seconds "$1" "$build/bin/mt-preprocess" --workers "$2" --quiet --force --append-eod --output-prefix "$scratch/out" \
    --vocab-file "$gpt2/vocab.json" --merge-file "$gpt2/merges.txt" --input "${@:3}"
}
report() { # WHAT UNIT GOAL COLUMN: the median of a column of $scratch/rows
  cut -d' ' -f"$4" "$scratch/rows" | sort -g | awk -v what="$1" -v unit="$2" -v goal="$3" '{ r[NR] = $1 } END {
    printf "{\"bench\":\"tokenizer\",\"what\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"goal\":\"%s\",\"least\":%.3f,\"most\":%.3f,\"rounds\":%d,\"command\":\"test/bench/tokenizer.sh\"}\n",
      what, (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2, unit, goal, r[1], r[NR], NR }'
}

ours 0 1 "$file" >/dev/null # the file is in memory from here on
text=$("$build/bin/mt-preprocess" --json --quiet --force --output-prefix "$scratch/out" --vocab-file "$gpt2/vocab.json" \
  --merge-file "$gpt2/merges.txt" --input "$file" | sed -E 's/.*"text_bytes":([0-9]+).*/\1/')
stored=$(stat -c %s "$file")
: >"$scratch/rows"
for _ in $(seq "$pairs"); do
  start=$(ours 0 1 "$scratch/tiny.jsonl") once=$(ours 0 1 "$file") twice=$(ours 0 1 "$file" "$file")
  start2=$(ours 0,1 2 "$scratch/tiny.jsonl") twice2=$(ours 0,1 2 "$file" "$file")
  words=$(LC_ALL=C seconds 0 wc -w "$file")
  giga=0 tokenizers=0
  if [ -n "$python" ] && [ -e "$script" ]; then
    "$python" "$script" "$gpt2" "$file" --threads 1 --rounds 2 >"$scratch/peers"
    rate() { grep "\"$1\"" "$scratch/peers" | grep "\"round\": $2" | sed -E 's/.*_per_s": ([0-9.]+).*/\1/'; }
    giga=$(rate gigatoken 0) tokenizers=$(rate tokenizers 1)
  fi
  awk -v s="$start" -v a="$once" -v b="$twice" -v s2="$start2" -v b2="$twice2" -v w="$words" -v g="$giga" -v t="$tokenizers" \
    -v text="$text" -v stored="$stored" 'BEGIN {
      first = text / 1e6 / (a - s); second = text / 1e6 / (b - a)
      print first, second, (b - s) / (b2 - s2), stored / 1e6 / (a - s) / (stored / 1e6 / w), s, g ? first / g : 0, t ? second / t : 0 }' >>"$scratch/rows"
done
report "first pass, one core" MB/s "" 1
report "second pass, one core" MB/s "" 2
report "two threads / one" x ">= 1.85" 3
report "first pass / LC_ALL=C wc -w" x "" 4
report "start-up" s "" 5
if [ -n "$python" ] && [ -e "$script" ]; then
  report "first pass / gigatoken's first round" x ">= 1.0" 6
  report "second pass / tokenizers" x ">= 40" 7
else
  echo "tokenizer.sh: no PEERS_PYTHON and PEERS_SCRIPT: not measured beside the peers" >&2
fi
