#!/usr/bin/env bash
# mt-generate: statuses, messages, streams.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
generate=$bin/mt-generate
hf=$source/test/data/hf
cd "$scratch" || exit 1
"$bin/mt-reshard" --quiet "$hf/gpt-shakespeare" ckpt || exit 1
"$bin/mt-reshard" --quiet "$hf/gpt-nano-sort" nano || exit 1

expect 0 "$generate" --help
for option in load prompt greedy num-tokens-to-generate vocab-file merge-file; do
  grep -q -- "--$option" <<<"$out" || fail "--help does not list --$option"
done

# stdout is the text and one newline, and nothing else.
expect 0 "$generate" --load ckpt --greedy --prompt "What, ho!" --num-tokens-to-generate 20
case $out in "What, ho!"*) ;; *) fail "the prompt does not come first: $out" ;; esac
text=$out
[ "$(tail -c 1 stdout | od -An -c | tr -d ' ')" = '\n' ] || fail "no newline at the end"
[ -z "$err" ] || fail "stderr is not empty: $err"
printf 'What, ho!' > prompt
"$generate" --load ckpt --greedy --prompt - --num_tokens_to_generate 20 < prompt > piped || fail "prompt from stdin"
[ "$(cat piped)" = "$text" ] || fail "the prompt from stdin gives another text"
expect 0 "$generate" --load ckpt --greedy --prompt "What, ho!" --num-tokens-to-generate 0
[ "$out" = "What, ho!" ] || fail "0 tokens: $out"
expect 0 "$generate" --load ckpt --greedy --num-tokens-to-generate 5
[ -n "$out" ] || fail "the empty prompt gives nothing"
# Bytes that are not UTF-8 pass; special tokens in the prompt are text.
printf 'x\377\376y<|endoftext|>' > prompt
"$generate" --load ckpt --greedy --prompt - --num-tokens-to-generate 3 < prompt > raw || fail "raw bytes"
head -c 17 raw | cmp -s - prompt || fail "the prompt's bytes changed"

# A given tokenizer is the same or refused with both digests.
expect 0 "$generate" --load ckpt --greedy --prompt "What, ho!" --num-tokens-to-generate 20 \
  --vocab-file "$hf/gpt-shakespeare/vocab.json" --merge-file "$hf/gpt-shakespeare/merges.txt"
[ "$out" = "$text" ] || fail "the same tokenizer given gives another text"
head -n -1 "$hf/gpt-shakespeare/merges.txt" > merges.txt
refuses 3 "digest" "$generate" --load ckpt --greedy --vocab-file "$hf/gpt-shakespeare/vocab.json" --merge-file merges.txt
[ "$(grep -oE '[0-9a-f]{32}' <<<"$err" | sort -u | wc -l)" -eq 2 ] || fail "not both digests: $err"
refuses 2 "--vocab-file" "$generate" --load nano --greedy

# Misuse: status 2, and what does not fit with its arithmetic.
refuses 2 "--greedy" "$generate" --load ckpt
refuses 2 "--load" "$generate" --greedy
refuses 2 "--num-tokens-to-generate" "$generate" --load ckpt --greedy --num-tokens-to-generate -1
refuses 2 "128" "$generate" --load ckpt --greedy --num-tokens-to-generate 129
refuses 2 "128" "$generate" --load ckpt --greedy --num-tokens-to-generate 9223372036854775807
refuses 2 "prompt" "$generate" --load ckpt --greedy --promt x
expect 0 "$generate" --load ckpt --greedy --num-tokens-to-generate 128

# A missing, a damaged checkpoint.
refuses 4 "nowhere" "$generate" --load nowhere --greedy
cp -r ckpt hurt
file=$(ls hurt/model-*.h5)
printf '\125' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") / 2)) conv=notrunc status=none
refuses 3 "hurt" "$generate" --load hurt --greedy
grep -qE 'layers\.|embedding|layernorm' <<<"$err" || fail "the damaged tensor is not named: $err"
rm -r hurt/model-*
refuses 3 "hurt" "$generate" --load hurt --greedy

# Streams: a reader that leaves ends it quietly, what cannot be written is noticed.
"$generate" --load ckpt --greedy --prompt ROMEO: --num-tokens-to-generate 120 2> stderr | head -c 1 > first
status=${PIPESTATUS[0]}
[ "$status" -eq 141 ] || [ "$status" -eq 0 ] || fail "broken pipe: status $status"
[ ! -s stderr ] || fail "broken pipe: $(cat stderr)"
[ "$(cat first)" = R ] || fail "the first byte is $(cat first)"
expect 4 bash -c "exec '$generate' --load ckpt --greedy --prompt x > /dev/full"
says "output"
[ "$(wc -l <<<"$err")" -eq 1 ] || fail "more than one line of errors: $err"
expect 4 bash -c "exec '$generate' --load ckpt --greedy --prompt x >&-"
# A stdin that cannot be read is no empty prompt; one that never ends is no prompt.
refuses 4 "standard input" "$generate" --load ckpt --greedy --prompt - < "$scratch"
refuses 4 "standard input" "$generate" --load ckpt --greedy --prompt - <&-
refuses 2 "standard input" "$generate" --load ckpt --greedy --prompt - < /dev/zero
# Each piece is written as it comes: the prompt is there before the end.
timeout -s INT 0.01 "$generate" --load ckpt --greedy > /dev/null 2> stderr
status=$?
[ ! -s stderr ] || fail "interrupted: status $status, $(cat stderr)"
finish
