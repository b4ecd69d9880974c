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
for option in load valid-data seq-length overlapping-eval micro-batch-size json token-nll force; do
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
