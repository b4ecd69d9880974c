#!/usr/bin/env bash
# How well a model learns: share/config/shakespeare.conf with one seed must reach, on the last tenth of the text that it
# has not seen, the mean of three seeds of the reference (test/data/shakespeare-training.jsonl) within 0.04.
# MT_SEEDS="1 2 3" does several, prints a table and compares their mean.
source "$(dirname "$0")/cli/training_common.sh"
command -v jq >/dev/null || { echo "jq is missing"; exit 1; }
text=$source/share/shakespeare
seeds=${MT_SEEDS:-1}

# int(0.9 * 1115394) characters, all of them ASCII.
head -c 1003854 "$text/input.txt" > train.txt
tail -c +1003855 "$text/input.txt" > valid.txt
for part in train valid; do
  jq -Rsc '{text: .}' "$part.txt" | "$bin/mt-preprocess" --input - --output-prefix $part --vocab-file "$text/vocab.json" \
    --merge-file "$text/merges.txt" 2>prep.log || { cat prep.log; exit 1; }
done

reference=$(jq -s '[.[] | select(.step == 1000) | .valid_loss] | add / length' "$source/test/data/shakespeare-training.jsonl")
echo "seed  first   100    500    1000   seconds  ms/step  tokens/s"
for seed in $seeds; do
  begin=$(date +%s.%N)
  "$bin/mt-train" --config "$source/share/config/shakespeare.conf" --train-data-path train.h5 --valid-data-path valid.h5 \
    --save "run$seed" --seed "$seed" --metrics "run$seed.jsonl" 2>"run$seed.log" || { tail -3 "run$seed.log"; exit 1; }
  seconds=$(date +%s.%N | awk -v begin="$begin" "{ print \$1 - begin }")
  jq -rs --arg seed "$seed" --arg seconds "$seconds" '
    def valid(n): [.[] | select(.step == n and .validation_loss) | .validation_loss][0];
    def rate: [.[] | select(.tokens_per_second) | .tokens_per_second] | sort | .[length / 2 | floor];
    [$seed, .[0].loss, valid(100), valid(500), valid(1000), ($seconds | tonumber), 2048000 / rate, rate]
    | map(if type == "number" then (. * 1000 | round / 1000) else . end) | join("  ")' "run$seed.jsonl"
  jq -s '[.[] | select(.step == 1000 and .validation_loss)] | .[0] | [.validation_loss, .validation_tokens] | @tsv' -r \
    "run$seed.jsonl" >> final.tsv
done
checks=1
awk -v reference="$reference" '{ sum += $1; if ($2 != 49408) { print "validated on " $2 " tokens, not 386 * 128"; bad = 1 } }
  END { mean = sum / NR; d = mean - reference
    printf "mean of %d: %.4f, reference %.4f, difference %+.4f (at most 0.04)\n", NR, mean, reference, d
    exit bad || NR == 0 || d > 0.04 || d < -0.04 }' final.tsv || fail "the loss is not that of the reference"
finish
