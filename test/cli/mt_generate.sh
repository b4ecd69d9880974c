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
for option in load prompt prompts-file requests-file greedy top-p num-tokens-to-generate stop json sliding; do
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
refuses 2 "--top-k" "$generate" --load ckpt --greedy --top-k 3
refuses 2 "--prompts-file" "$generate" --load ckpt --prompt x --prompts-file y
for wrong in "--temperature 0" "--top-k -1" "--top-p 1.5" "--repetition-penalty 0" "--seed -1" "--num-samples 0" \
  "--micro-batch-size 0" "--precision fp16" "--stop="; do
  # shellcheck disable=SC2086
  refuses 2 "${wrong%%[ =]*}" "$generate" --load ckpt $wrong
done
refuses 2 "standard input" "$generate" --load ckpt --prompt - --prompt -
refuses 2 "--load" "$generate" --greedy
refuses 2 "--num-tokens-to-generate" "$generate" --load ckpt --greedy --num-tokens-to-generate -1
refuses 2 "128" "$generate" --load ckpt --greedy --num-tokens-to-generate 129
refuses 2 "128" "$generate" --load ckpt --greedy --num-tokens-to-generate 9223372036854775807
refuses 2 "prompt" "$generate" --load ckpt --greedy --promt x
expect 0 "$generate" --load ckpt --greedy --num-tokens-to-generate 128

# Sampling: a text is a function of prompt, seed and sample, in any batch, with any threads and kernels, from any source.
sampled() { "$generate" --load ckpt --json --seed 7 --num-tokens-to-generate 24 "$@"; }
sampled --prompt "What, ho!" "" "ROMEO:" "A" "KING" --num-samples 2 > json || fail "JSON lines"
[ "$(jq -c '[.index, .sample]' json | tr -d '\n')" = "[0,0][0,1][1,0][1,1][2,0][2,1][3,0][3,1][4,0][4,1]" ] ||
  fail "order: $(jq -c '[.index, .sample]' json)"
jq -es 'all((.tokens | length) == 24 and (.log_probabilities | length) == 24 and .finish_reason == "length")' json > /dev/null ||
  fail "fields: $(head -n 1 json)"
jq -es '.[0].text != .[1].text' json > /dev/null || fail "two samples are the same text"
printf 'What, ho!\n\nROMEO:\r\nA\nKING' > lines
for way in "--micro-batch-size 1" "--micro-batch-size 3 --threads 1" "--micro-batch-size 100 --threads 2"; do
  # shellcheck disable=SC2086
  sampled --prompts-file lines --num-samples 2 $way | cmp - json || fail "$way: another text"
done
MT_CPU=baseline sampled --sample_input_file - --num-samples 2 < lines | cmp - json || fail "baseline: another text"
sampled --prompt KING > alone || fail "one alone"
jq -e -n --slurpfile a alone --slurpfile b json '$a[0].text == $b[8].text' > /dev/null || fail "another text alone"
sampled --prompt KING --seed=8 2> /dev/null && fail "--seed twice"
expect 0 "$generate" --load ckpt --prompt KING --seed 7 --num-tokens-to-generate 24
[ "$out" = "KING$(jq -r .text alone)" ] || fail "text and JSON differ: $out"
expect 0 "$generate" --load ckpt --prompt KING --seed 8 --num-tokens-to-generate 24
[ "$out" != "KING$(jq -r .text alone)" ] || fail "the seed changes nothing"
# bf16 weights run, and give a text of their own accord twice.
expect 0 "$generate" --load ckpt --prompt KING --bf16 --num-tokens-to-generate 24
first=$out
expect 0 "$generate" --load ckpt --prompt KING --precision bf16 --num-tokens-to-generate 24 --threads 1
[ "$out" = "$first" ] || fail "bf16: another text"

# Requests with options of their own; a line that is wrong is named, and all before it is there.
{
  printf '{"prompt": "KING", "seed": 7, "id": {"a": 1}}\n\n'
  printf '{"prompt": "What, ho!", "greedy": true, "num_tokens_to_generate": 20}\n'
  printf '{"prompt": "KING", "seed": 7, "num_samples": 2, "stop": ["\\n"]}\n'
} > requests
expect 0 "$generate" --load ckpt --requests-file requests --json --num-tokens-to-generate 24
jq -e -n --slurpfile a alone --slurpfile b stdout '$a[0].text == $b[0].text and $b[0].id.a == 1' > /dev/null || fail "request 1: $out"
[ "What, ho!$(jq -rs '.[1].text' stdout)" = "$text" ] || fail "request 2: $out"
jq -es 'length == 4 and all(.[2:][]; (.text | contains("\n") | not))' stdout > /dev/null || fail "stop: $out"
for bad in '{"prompt": "x", "topk": 1}' '{"prompt": "x"' '{"prompt": 1}' '{"prompt": "x", "num_tokens_to_generate": 900}'; do
  { cat requests; echo "$bad"; cat requests; } > broken
  expect 3 "$generate" --load ckpt --requests-file broken --json --num-tokens-to-generate 24
  says "broken:5"
  [ "$(wc -l < stdout)" -eq 4 ] || fail "not all before the bad line is there: $(wc -l < stdout) lines"
done
refuses 4 "nowhere" "$generate" --load ckpt --prompts-file nowhere

# Stop texts: nothing of them goes out, in text as in JSON; streamed or not.
expect 0 "$generate" --load ckpt --greedy --prompt "What, ho!" --num-tokens-to-generate 20 --stop zzz --stop "I'll be"
case $out in *"I'll"*) fail "a part of the stop text: $out" ;; "What, ho!"?*) ;; *) fail "stopped too early: $out" ;; esac
expect 0 "$generate" --load ckpt --greedy --prompt "What, ho!" --num-tokens-to-generate 20 --stop "I'll be" --json
[ "$(jq -r .finish_reason stdout)" = stop ] || fail "finish: $out"

# Beyond the positions: refused with the arithmetic (above), or the window slides, the same in every batch.
sliding() { "$generate" --load ckpt --sliding --json --out-seq-length 150 "$@"; }
sliding --prompt A B "$(printf 'word %.0s' {1..200})" --micro-batch-size 1 > one || fail "--sliding"
jq -es 'all((.tokens | length) == 150)' one > /dev/null || fail "--sliding: too few tokens"
sliding --prompt A B "$(printf 'word %.0s' {1..200})" | cmp - one || fail "--sliding: another text in a batch"

# A long input streams: a reader that leaves ends it, however much is still to come.
yes KING | timeout 60 "$generate" --load ckpt --prompts-file - --num-tokens-to-generate 2 2> stderr | head -n 40 > many
status=("${PIPESTATUS[@]}")
[ "${status[1]}" -eq 141 ] || fail "endless input: status ${status[1]}"
[ "$(wc -l < many)" -eq 40 ] || fail "endless input: $(wc -l < many) lines"
[ ! -s stderr ] || fail "endless input: $(cat stderr)"
# A prompt that comes slowly is answered before the next one with one text at a time.
mkfifo slow
"$generate" --load ckpt --greedy --prompts-file slow --micro-batch-size 1 --num-tokens-to-generate 1 > answers &
pid=$!
exec 9> slow
echo KING >&9
for _ in $(seq 100); do [ -s answers ] && [ "$(tail -c 1 answers | wc -l)" -eq 1 ] && break; sleep 0.1; done
[ -s answers ] || fail "no answer while the input is open"
exec 9>&-
wait "$pid" || fail "slow input: status $?"
# Ctrl-C ends it at once and quietly.
timeout --preserve-status -k 20 -s INT 0.5 "$generate" --load ckpt --sliding --num-tokens-to-generate 1G > /dev/null 2> stderr
status=$?
[ "$status" -eq 130 ] || fail "Ctrl-C: status $status"
[ ! -s stderr ] || fail "Ctrl-C: $(cat stderr)"

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
