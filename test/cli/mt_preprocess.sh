#!/usr/bin/env bash
# mt-preprocess: statuses, messages, streams, counts, order, and that nothing is left where nothing was written.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
preprocess=$bin/mt-preprocess
gpt2=$source/test/data/tokenizer/gpt2
malformed=$source/test/data/pile/malformed.jsonl
cd "$scratch" || exit 1
vocabulary=(--vocab-file "$gpt2/vocab.json" --merge-file "$gpt2/merges.txt")
run=("$preprocess" "${vocabulary[@]}" --output-prefix out)

# absent: no shard and no temporary file.
absent() {
  local left
  left=$(ls -A | grep -E '^\.|\.h5|^out' | tr '\n' ' ')
  [ -z "$left" ] || fail "left after $1: $left"
}

# Sound input: stdout is empty, the log tells path and counts, the tokens are the right ones.
printf '{"text": "Hello world"}\n\n{"text": ""}\n{"text": "a<|endoftext|>b"}' > good.jsonl
expect 0 "${run[@]}" --input good.jsonl --append-eod
[ -z "$out" ] || fail "stdout is not empty: $out"
says "mt-preprocess: wrote out.h5: 3 documents (1 empty), 14 tokens, 26 bytes of text, from 1 input, 4 lines (1 blank)"
tokens=$(h5dump -d /tokens -y -w 0 out.h5 | sed -n '/DATA {/,/}/p' | tr -dc '0-9,')
[ "$tokens" = 15496,995,50256,50256,64,27,91,437,1659,5239,91,29,65,50256 ] || fail "tokens $tokens"
offsets=$(h5dump -d /document_offsets -y -w 0 out.h5 | sed -n '/DATA {/,/}/p' | tr -dc '0-9,')
[ "$offsets" = 0,3,4,14 ] || fail "offsets $offsets"
cp out.h5 first.h5

# Refused without --force before anything is read; --force replaces.
refuses 2 "out.h5 exists" "${run[@]}" --input absent.jsonl
cmp -s out.h5 first.h5 || fail "the old shard was touched"
expect 0 "${run[@]}" --input good.jsonl --force
cmp -s out.h5 first.h5 && fail "--force did not replace"
expect 0 "${run[@]}" --input good.jsonl --append-eod --force --json --quiet
[ -z "$err" ] || fail "--quiet says: $err"
case $out in '{"path":"out.h5","inputs":1,"lines":4,"blank":1,"documents":3,'*) ;; *) fail "--json: $out" ;; esac
cmp out.h5 first.h5 || fail "equal input gives other bytes"
# A failure leaves the old shard as it was.
echo '{"content": 1}' > bad.jsonl
refuses 3 "no documents in 1 lines" "${run[@]}" --input bad.jsonl --force
says "it has content"
cmp out.h5 first.h5 || fail "a failed --force changed the old shard"
rm -f out.h5 first.h5

# stdin, compressed input under any name, several inputs, any number of workers: the same bytes.
for _ in $(seq 40); do cat "$malformed"; echo; done > many.jsonl
expect 0 "${run[@]}" --input many.jsonl --append-eod --workers 1
mv out.h5 one.h5
says "920 documents" "640 bad lines passed over: 320 not JSON, 120 not an object, 80 without the key, 120 with a value" \
  "400 places in 200 lines" "more than 100 bad lines" "many.jsonl:5: no key \"text\"; it has meta"
[ "$(grep -c 'many.jsonl:[0-9]*: ' <<<"$err")" -eq 100 ] || fail "not 100 bad lines are shown"
expect 0 "${run[@]}" --input many.jsonl --append-eod --workers 8
cmp out.h5 one.h5 || fail "8 workers give other bytes"
rm out.h5
zstd -q many.jsonl -o packed.txt
expect 0 "${run[@]}" --input packed.txt --append-eod --workers 3
cmp out.h5 one.h5 || fail "zstd gives other bytes"
rm out.h5
gzip -c many.jsonl > packed.bin
expect 0 bash -c 'cat packed.bin | "$@"' "$preprocess" "${run[@]}" --input - --append-eod
cmp out.h5 one.h5 || fail "gzip on stdin gives other bytes"
rm out.h5
half=$(($(wc -l < many.jsonl) / 2))
head -n $half many.jsonl > a.jsonl; tail -n +$((half + 1)) many.jsonl > b.jsonl
expect 0 "${run[@]}" --input a.jsonl b.jsonl --append-eod
cmp out.h5 one.h5 || fail "two inputs give other bytes"
rm -f out.h5 one.h5

# Bad input: status, words, nothing left.
# The log of bad lines is not asked for here.
bad() { # bad STATUS "TEXT" ARGUMENT...
  refuses "$1" "$2" "${run[@]}" --quiet "${@:3}"
  absent "$2"
}
bad 3 'malformed.jsonl:5: no key "text"' --input "$malformed" --strict
printf '{"text": "ok"}\n{"text": "a\xff"}\n' > latin.jsonl
bad 3 'latin.jsonl:2: 1 places' --input latin.jsonl --strict
printf '{"content": "x", "title": "y"}\n{"content": "z"}\n' > keys.jsonl
bad 3 'keys.jsonl: no documents in 2 lines: first line without it: no key "text"; it has content, title' --input keys.jsonl
: > empty.jsonl
bad 3 'empty.jsonl: no documents in 0 lines' --input empty.jsonl
printf '\n \n\t\r\n' > blank.jsonl
bad 3 '0 bad and 3 blank' --input blank.jsonl
printf '{"text": ""}\n' > nothing.jsonl
bad 3 'without a single token' --input nothing.jsonl
head -c -100 packed.txt > cut.zst
bad 3 'truncated: the file ends inside a zstd frame' --input cut.zst
(cat packed.txt; echo garbage) > after.zst
bad 3 'zstd' --input after.zst
bad 4 'absent.jsonl: No such file' --input good.jsonl absent.jsonl
bad 2 'stdin (-) can be read only once' --input - -
bad 2 '--input is required'
bad 2 '--tokenizer-type' --input good.jsonl --tokenizer-type BPE
bad 2 '--workers -1' --input good.jsonl --workers -1
bad 2 'append-eod' --input good.jsonl --append-eot
says "see mt-preprocess --help"
refuses 2 "--output-prefix -:" "$preprocess" "${vocabulary[@]}" --input good.jsonl --output-prefix -
refuses 2 "--output-prefix d/:" "$preprocess" "${vocabulary[@]}" --input good.jsonl --output-prefix d/
refuses 2 "--output-prefix is required" "$preprocess" "${vocabulary[@]}" --input good.jsonl
refuses 4 "none/out" "$preprocess" "${vocabulary[@]}" --input good.jsonl --output-prefix none/out
refuses 4 "absent.json" "$preprocess" --input good.jsonl --output-prefix out --vocab-file absent.json --merge-file "$gpt2/merges.txt"
refuses 3 "error: $gpt2/merges.txt: byte 0: expected an object" "$preprocess" --input good.jsonl --output-prefix out \
  --vocab-file "$gpt2/merges.txt" --merge-file "$gpt2/merges.txt"
refuses 3 "error: $gpt2/vocab.json: line 1" "$preprocess" --input good.jsonl --output-prefix out \
  --vocab-file "$gpt2/vocab.json" --merge-file "$gpt2/vocab.json"
absent "bad vocabularies"
# A name that would forge a line of the log.
printf 'x\n' > $'evil\nmt-preprocess: wrote all'
refuses 3 'evil\x0amt' "${run[@]}" --input $'evil\nmt-preprocess: wrote all'
absent "an evil name"

# Another key.
expect 0 "${run[@]}" --input keys.jsonl --json_keys content
says "2 documents"
h5dump -a /option.json-keys out.h5 | grep -q content || fail "the key is not recorded"
rm -f out.h5

# Megatron-LM's two files, and the same documents from them; one of another name; what contradicts.
printf '{"text": "Hello world"}\n{"text": ""}\n{"text": "a b"}\n' > three.jsonl
expect 0 "${run[@]}" --input three.jsonl --append-eod --output-format megatron
[ "$(od -v -A n -t u2 -w2 out_text_document.bin | tr -d ' ' | tr '\n' ,)" = 15496,995,50256,50256,64,275,50256, ] ||
  fail "megatron: tokens $(od -A n -t u2 out_text_document.bin)"
[ "$(stat -c %s out_text_document.idx)" -eq $((34 + 12 * 3 + 8 * 4)) ] || fail "megatron: the index has another size"
refuses 2 "out_text_document.idx exists" "${run[@]}" --input three.jsonl --append-eod --output-format megatron
expect 0 "${run[@]}" --input three.jsonl --append-eod --output-format megatron --force
expect 0 "${run[@]}" --input three.jsonl --append-eod
mv out.h5 direct.h5
expect 0 "${run[@]}" --from-megatron out
for set in tokens document_offsets; do
  [ "$(h5dump -d /$set -y out.h5 | tail -n +2)" = "$(h5dump -d /$set -y direct.h5 | tail -n +2)" ] || fail "--from-megatron: other $set"
done
rm -f out.h5 direct.h5
refuses 4 "neither nowhere.idx nor nowhere_text_document.idx" "${run[@]}" --from-megatron nowhere
refuses 2 "--from-megatron: takes tokens as they are" "${run[@]}" --from-megatron out --input three.jsonl
printf 'x' >> out_text_document.idx
refuses 3 "out_text_document.idx: " "${run[@]}" --from-megatron out
rm out_text_document.bin
refuses 4 "out_text_document.bin" "${run[@]}" --from-megatron out_text_document
rm -f out_text_document.idx
absent "bad indexed data"

# Memory stays bounded: 300 MB of text with an address space of 700 MB.
yes '{"text": "the quick brown fox jumps over the lazy dog, again and again, for as long as it takes"}' | head -c 300000000 |
  zstd -q -1 > big.zst
expect 3 bash -c 'ulimit -v 700000; exec "$@"' "$preprocess" "${run[@]}" --input big.zst --workers 2 --strict
says "big.zst:"  # its last line is cut
absent "a cut last line"
rm -f big.zst
finish
