#!/usr/bin/env bash
# mt-eval: statuses, messages, reports.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
evaluate=$bin/mt-eval
hf=$source/test/data/hf
cd "$scratch" || exit 1
"$bin/mt-reshard" --quiet "$hf/gpt-shakespeare" ckpt || exit 1
"$bin/mt-reshard" --quiet "$hf/gpt-nano-sort" nano || exit 1
head -c 3000 "$hf/shakespeare-valid.txt" > text.txt

expect 0 "$evaluate" --help
for option in load valid-data seq-length overlapping-eval micro-batch-size json token-nll force scores precision refuse-truncation; do
  grep -q -- "--$option" <<<"$out" || fail "--help does not list --$option"
done

# field NAME: of the JSON object in $out.
field() { sed -nE "s/.*\"$1\":([^,}]*).*/\1/p" <<<"${out##*$'\n'}"; }

expect 0 "$evaluate" --load ckpt --valid-data text.txt
for word in "stride 128" token word byte "bits per byte" ckpt text.txt; do
  case $out in *"$word"*) ;; *) fail "\"$word\" is not in the table: $out" ;; esac
done
expect 0 "$evaluate" --load ckpt --valid-data text.txt --json
report=$out
[ "$(wc -l < stdout)" -eq 1 ] || fail "--json is not one line"
[ "$(field words)" = "$(wc -w < text.txt)" ] || fail "words: $(field words), wc says $(wc -w < text.txt)"
[ "$(field bytes)" = 3000 ] || fail "bytes: $(field bytes)"
[ "$(field targets)" -eq $(($(field tokens) - 1)) ] || fail "targets: $report"
"$evaluate" --load ckpt --valid-data - --json < text.txt > piped || fail "stdin"
[ "$(sed 's/standard input/text.txt/' piped)" = "$report" ] || fail "stdin gives another report: $(cat piped)"
expect 0 "$evaluate" --load ckpt --valid-data text.txt --json --micro-batch-size 1
[ "$out" = "$report" ] || fail "the batch size changes the report"

# A line a token, in a file that is whole or absent, or before the report.
expect 0 "$evaluate" --load ckpt --valid-data text.txt --json --token-nll nll.jsonl
[ "$(wc -l < nll.jsonl)" -eq "$(field targets)" ] || fail "lines of --token-nll"
refuses 2 "nll.jsonl" "$evaluate" --load ckpt --valid-data text.txt --token-nll nll.jsonl
expect 0 "$evaluate" --load ckpt --valid-data text.txt --token-nll nll.jsonl --force
expect 0 "$evaluate" --load ckpt --valid-data text.txt --json --token-nll -
[ "$(head -n -1 stdout)" = "$(cat nll.jsonl)" ] || fail "--token-nll - differs from the file"
[ "${out##*$'\n'}" = "$report" ] || fail "the report is not the last line"

# Several models and texts: each pair once, in order, bit for bit what it gives alone.
head -c 1500 "$hf/shakespeare-valid.txt" > short.txt
cp -r ckpt second
one() { "$evaluate" --load "$1" --valid-data "$2" "${@:3}" || fail "$*"; }
expect 0 "$evaluate" --load ckpt second --valid-data text.txt short.txt --json
[ "$out" = "$(for m in ckpt second; do for t in text.txt short.txt; do one $m $t --json; done; done)" ] ||
  fail "four results are not those of four runs: $out"
expect 0 "$evaluate" --load ckpt --load second --valid-data text.txt --valid-data short.txt
[ "$out" = "$(one ckpt text.txt; for p in "ckpt short.txt" "second text.txt" "second short.txt"; do echo; one $p; done)" ] ||
  fail "four blocks are not those of four runs: $out"
expect 3 "$evaluate" --load ckpt --valid-data text.txt /dev/null short.txt --json
says /dev/null
[ "$out" = "$report" ] || fail "the result before a failing text is not out: $out"
expect 4 "$evaluate" --load ckpt nowhere --valid-data text.txt --json
says nowhere
[ "$out" = "$report" ] || fail "the result before a failing checkpoint is not out: $out"
expect 3 "$evaluate" --load ckpt nano --valid-data text.txt --json --seq-length 128
says "nano" "error: "
[ "$out" = "$report" ] || fail "the result before a model that does not fit is not out: $out"
refuses 2 "--token-nll" "$evaluate" --load ckpt --valid-data text.txt short.txt --token-nll -
refuses 2 "--force: without --token-nll nothing is written" "$evaluate" --load ckpt --valid-data text.txt --force
refuses 2 "standard input" "$evaluate" --load ckpt second --valid-data - < text.txt
refuses 2 "standard input" "$evaluate" --load ckpt --valid-data - - < text.txt
# On a terminal several results are aligned lines under a heading.
if command -v script > /dev/null; then
  script -qec "'$evaluate' --quiet --load ckpt second --valid-data text.txt short.txt" /dev/null < /dev/null |
    tr -d '\r' | sed 's/.*\x1b\[K//' | grep -v 'tokens evaluated$' > table
  [ "$(wc -l < table)" -eq 5 ] || fail "lines of the table: $(cat table)"
  [ "$(awk '{print length}' table | sort -u | wc -l)" -eq 1 ] || fail "the table is not aligned: $(cat table)"
  [ "$(awk 'NR > 1 {print $1, $3, $5, $6}' table | tr '\n' ';')" = \
    "ckpt text.txt 542 3000;ckpt short.txt $(wc -w < short.txt) 1500;second text.txt 542 3000;second short.txt $(wc -w < short.txt) 1500;" ] ||
    fail "the table: $(cat table)"
else
  echo "skipped: no script(1), the table on a terminal is not tested"
fi
# Weights in 16 bits: nearly the same, and said.
expect 0 "$evaluate" --load ckpt --valid-data text.txt --json --precision bf16
[ "$(field precision)" = '"bf16"' ] && [ "$(field nll)" != "$(sed -nE 's/.*"nll":([^,}]*).*/\1/p' <<<"$report")" ] ||
  fail "bf16: $out"
awk -v a="$(field nll)" -v b="$(sed -nE 's/.*"nll":([^,}]*).*/\1/p' <<<"$report")" 'BEGIN {exit !(a / b < 1.001 && b / a < 1.001)}' ||
  fail "bf16 is far away: $out"
refuses 2 "precision" "$evaluate" --load ckpt --valid-data text.txt --precision fp8

# Scores: pairs and questions, in the order of the lines, the same bits for any batch and from stdin.
cat > lines.jsonl <<'END'
{"id": "a", "context": "Good morrow,", "continuation": " neighbour Baptista."}

{"context": "Good morrow, ", "continuations": ["neighbour Baptista.", "sir", "my lord"], "answer": 1}
{"context": "", "continuation": "What"}
END
expect 0 "$evaluate" --load ckpt --scores lines.jsonl --json
scored=$out
[ "$(grep -oE '"line":[0-9]+|"totals"' <<<"$out" | tr '\n' ' ')" = '"line":1 "line":3 "line":4 "totals" ' ] || fail "lines: $out"
[ "$(field pairs)$(field questions)$(field scores)$(field empty_contexts)$(field answered)" = 21511 ] || fail "totals: $out"
[ "$(field tokens_computed)" = "$(field tokens_needed)" ] || fail "tokens computed and needed: $out"
says "5 scores of 2 pairs and 1 questions"
number() { grep -oE '"logprob":[^,]*' <<<"$scored" | sed -n "$1p"; }
[ "$(number 1)" = "$(number 2)" ] || fail "a blank at the end of a context changes the score: $scored"
for batch in 1 3 64; do
  expect 0 "$evaluate" --load ckpt --scores lines.jsonl --json --micro-batch-size $batch --threads 1
  [ "$out" = "$scored" ] || fail "micro-batch $batch changes the scores: $out"
done
expect 0 "$evaluate" --load ckpt --scores - --quiet < lines.jsonl
[ "$out" = "$(head -n -1 <<<"$scored")" ] && [ -z "$err" ] || fail "scores from stdin: $out $err"
gzip -k lines.jsonl
expect 0 "$evaluate" --load ckpt second --scores lines.jsonl lines.jsonl.gz
[ "$out" = "$(for i in 1 2 3 4; do head -n -1 <<<"$scored"; done)" ] || fail "two models and two files: $out"
# A bad line ends it by name; what came before is out.
{ cat lines.jsonl; echo '{"context": 5, "continuation": "x"}'; head -n 1 lines.jsonl; } > bad.jsonl
expect 3 "$evaluate" --load ckpt --scores bad.jsonl --json
says "bad.jsonl: line 5: context"
[ "$out" = "$(head -n -1 <<<"$scored")" ] || fail "the lines before a bad one are not out: $out"
long=$(printf 'word %.0s' {1..200})
echo "{\"context\": \"$long\", \"continuation\": \"end\"}" > long.jsonl
expect 0 "$evaluate" --load ckpt --scores long.jsonl --json
[ "$(field contexts_cut)" = 1 ] && [ "$(field tokens_computed)" = 128 ] || fail "a long context: $out"
refuses 3 "long.jsonl: line 1: a context of" "$evaluate" --load ckpt --scores long.jsonl --refuse-truncation
echo "{\"context\": \"end\", \"continuation\": \"$long\"}" > long.jsonl
refuses 3 "long.jsonl: line 1: the continuation has" "$evaluate" --load ckpt --scores long.jsonl
printf '{"context": "a", "continuation"' > cut.jsonl
refuses 3 "cut.jsonl: line 1" "$evaluate" --load ckpt --scores cut.jsonl
gzip -k long.jsonl; head -c -4 long.jsonl.gz > cut.gz
refuses 3 "cut.gz" "$evaluate" --load ckpt --scores cut.gz
refuses 4 "nowhere" "$evaluate" --load ckpt --scores nowhere
refuses 2 "--vocab-file" "$evaluate" --load nano --scores lines.jsonl
refuses 2 "--scores" "$evaluate" --load ckpt --scores lines.jsonl --valid-data text.txt
refuses 2 "--seq-length" "$evaluate" --load ckpt --scores lines.jsonl --seq-length 8
refuses 2 "--token-nll" "$evaluate" --load ckpt --scores lines.jsonl --token-nll -
refuses 2 "--refuse-truncation" "$evaluate" --load ckpt --valid-data text.txt --refuse-truncation
expect 4 bash -c "exec '$evaluate' --load ckpt --scores lines.jsonl > /dev/full"

# Texts at the edges.
: > empty
refuses 3 "0 tokens" "$evaluate" --load ckpt --valid-data empty
printf e > one
refuses 3 "1 tokens" "$evaluate" --load ckpt --valid-data one
printf 'q!' > two
expect 0 "$evaluate" --load ckpt --valid-data two --json
[ "$(field targets)" = 1 ] || fail "two tokens: $out"
printf 'not \377\376 UTF-8, and cut \344\275' > odd
expect 0 "$evaluate" --load ckpt --valid-data odd --json
says "3 sequences"
[ "$(field replaced)" = 3 ] && [ "$(field bytes)" = "$(stat -c %s odd)" ] || fail "not UTF-8: $out"
printf '\n \n' > blank
expect 0 "$evaluate" --load ckpt --valid-data blank --json
[ "$(field perplexity_per_word)" = null ] || fail "no words: $out"
printf '\050\265\057\375abc' > text.zst
refuses 3 "zstd" "$evaluate" --load ckpt --valid-data text.zst

# A shard of the same text: the same tokens and bytes; another tokenizer's is refused.
if [ -x "$bin/mt-preprocess" ]; then
  printf '{"text": "Now is the winter"}\n{"text": "of our  discontent"}\n' > docs.jsonl
  expect 0 "$bin/mt-preprocess" --input docs.jsonl --output-prefix docs --append-eod \
    --vocab-file "$hf/gpt-shakespeare/vocab.json" --merge-file "$hf/gpt-shakespeare/merges.txt"
  expect 0 "$evaluate" --load ckpt --valid-data docs.h5 --json
  [ "$(field words)" = 7 ] && [ "$(field bytes)" = 35 ] || fail "a shard: $out"
  head -n -1 "$hf/gpt-shakespeare/merges.txt" > merges.txt
  expect 0 "$bin/mt-preprocess" --input docs.jsonl --output-prefix other --append-eod \
    --vocab-file "$hf/gpt-shakespeare/vocab.json" --merge-file merges.txt
  refuses 3 "tokenizer" "$evaluate" --load ckpt --valid-data other.h5
  [ "$(grep -oE '[0-9a-f]{32}' <<<"$err" | sort -u | wc -l)" -eq 2 ] || fail "not both digests: $err"
  cp docs.h5 hidden.txt
  refuses 3 "hidden.txt" "$evaluate" --load ckpt --valid-data hidden.txt
  truncate -s -1 other.h5
  refuses 3 "other.h5" "$evaluate" --load ckpt --valid-data other.h5
fi

# Misuse, and what is missing.
refuses 2 "--load" "$evaluate" --valid-data text.txt
refuses 2 "--valid-data" "$evaluate" --load ckpt
refuses 2 "1 to 128" "$evaluate" --load ckpt --valid-data text.txt --seq-length 129
refuses 2 "--overlapping-eval 65" "$evaluate" --load ckpt --valid-data text.txt --seq-length 64 --overlapping-eval 65
refuses 2 "--micro-batch-size" "$evaluate" --load ckpt --valid-data text.txt --micro-batch-size 0
refuses 2 "--vocab-file" "$evaluate" --load nano --valid-data text.txt
refuses 2 "overlapping-eval" "$evaluate" --load ckpt --valid-data text.txt --overlaping-eval 2
refuses 4 "nowhere" "$evaluate" --load nowhere --valid-data text.txt
refuses 4 "nowhere.txt" "$evaluate" --load ckpt --valid-data nowhere.txt
refuses 4 "nowhere.h5" "$evaluate" --load ckpt --valid-data nowhere.h5
refuses 4 "/proc/x" "$evaluate" --load ckpt --valid-data text.txt --token-nll /proc/x

# A damaged checkpoint: the tensor is named.
cp -r ckpt hurt
file=$(ls hurt/model-*.h5)
printf '\125' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") / 2)) conv=notrunc status=none
refuses 3 "hurt" "$evaluate" --load hurt --valid-data text.txt
grep -qE 'layers\.|embedding|layernorm' <<<"$err" || fail "the damaged tensor is not named: $err"

# Output that cannot be written.
expect 4 bash -c "exec '$evaluate' --load ckpt --valid-data text.txt > /dev/full"
expect 4 bash -c "exec '$evaluate' --load ckpt --valid-data text.txt --json >&-"
"$evaluate" --load ckpt --valid-data "$hf/shakespeare-valid.txt" --token-nll - 2> stderr | head -c 1 > /dev/null
[ ! -s stderr ] || fail "broken pipe: $(cat stderr)"
finish
