#!/usr/bin/env bash
# mt-preprocess: what its inputs may be (folders, patterns, compressed, plain), progress on a terminal, and the user reports on
# documents, ends and numbers of workers.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
preprocess=$bin/mt-preprocess
gpt2=$source/test/data/tokenizer/gpt2
cd "$scratch" || exit 1
vocabulary=(--vocab-file "$gpt2/vocab.json" --merge-file "$gpt2/merges.txt")
run=("$preprocess" "${vocabulary[@]}" --output-prefix out --force)
numbers() { # numbers DATASET: of out.h5, with commas
  h5dump -d "$1" -y -w 0 out.h5 | sed -n '/DATA {/,/}/p' | tr -dc '0-9,'
}
document() { printf '{"text": "%s"}\n' "$1"; }

# A tree with a loop, a second way into a folder, hidden and foreign files, and all kinds of compression.
mkdir -p tree/a tree/b/deep tree/.hidden tree/empty
document "tree a" > tree/a.jsonl
{ document "one"; document "two"; } > tree/a/1.jsonl
document "three" | gzip > tree/a/2.jsonl.gz
document "four" | gzip >> tree/a/2.jsonl.gz # a second member
document "five" | zstd -q > tree/b/deep/3.jsonl.zst
document "six" | zstd -q >> tree/b/deep/3.jsonl.zst # a second frame
document "seven" > tree/b/4.jsonl
document "not me" | tee tree/.hidden/5.jsonl tree/.6.jsonl tree/7.json > tree/b/8.jsonl.bak
: > tree/.jsonl
ln -s ../.. tree/b/deep/loop; ln -s ../b tree/a/again; ln -s nowhere tree/broken.txt
document "tree a" > flat.jsonl # "-" comes before "." in bytes, "." before "/"
{ document one; document two; document three; document four; } >> flat.jsonl
document seven > seven.jsonl; { document five; document six; } > five.jsonl
expect 0 "${run[@]}" --input tree --append-eod
says "8 documents" "from 5 inputs, 8 lines"
cp out.h5 tree.h5
# The folder b is found once, under one of its two names; which one does not depend on the file system's order.
for order in "flat.jsonl five.jsonl seven.jsonl" "flat.jsonl seven.jsonl five.jsonl"; do
  # shellcheck disable=SC2086
  expect 0 "${run[@]}" --input $order --append-eod
  cmp -s out.h5 tree.h5 && found=1
done
[ "${found:-0}" = 1 ] || fail "a folder gives other bytes than its files"
# However the inputs are cut, and whatever the number of workers: the same bytes (P09, P10).
cp -a tree copy
expect 0 "${run[@]}" --input copy/ --append-eod --workers 7
cmp -s out.h5 tree.h5 || fail "a copy of the folder with 7 workers gives other bytes"

# Patterns are expanded here, sorted, and may match folders; a name with such a character is itself.
for i in 10 9 1; do document "part $i" > "p$i.jsonl"; done
cat p1.jsonl p10.jsonl p9.jsonl > parts.joined
expect 0 "${run[@]}" --input parts.joined --append-eod
cp out.h5 parts.h5
expect 0 "${run[@]}" --input 'p[0-9]*.jsonl' --append-eod
cmp -s out.h5 parts.h5 || fail "a pattern gives other bytes than the sorted files"
expect 0 "${run[@]}" --input 'tre?' --append-eod
cmp -s out.h5 tree.h5 || fail "a pattern that matches a folder gives other bytes"
document "a star" > 'lit*.jsonl'; document "no star" > literal.jsonl
expect 0 "${run[@]}" --input 'lit*.jsonl'
says "1 documents"
rm out.h5
refuses 4 "--input no/such*.jsonl: no file matches the pattern" "${run[@]}" --input p1.jsonl 'no/such*.jsonl'
refuses 4 "--input tree/empty: the folder has no file of *.jsonl, *.jsonl.gz, *.jsonl.zst" "${run[@]}" --input tree/empty
refuses 4 "cannot open none: No such file" "${run[@]}" --input none
[ ! -e out.h5 ] || fail "a shard was written"

# A plain text without --plain is one error, at once, compressed or from stdin too; one bad line among good ones is not.
yes 'A line of a novel.' | head -n 5000 > novel.txt
gzip -k novel.txt
refuses 3 "novel.txt:1: expected an object of JSON on each line, found 10 lines with none: --plain takes" "${run[@]}" --input novel.txt
refuses 3 "novel.txt.gz:1: expected" "${run[@]}" --input p1.jsonl novel.txt.gz
refuses 3 "stdin:1: expected" "${run[@]}" --input - < novel.txt
{ echo oops; document fine; } > mixed.jsonl
expect 0 "${run[@]}" --input mixed.jsonl
says "mixed.jsonl:1: not JSON" "1 documents" "1 bad lines"
{ yes '{"text": "cut' | head -n 20; document fine; } > cut.jsonl
expect 0 "${run[@]}" --input cut.jsonl
says "20 bad lines"

# --plain: one file is one document, to the byte; a folder's texts; stdin; what is not UTF-8 is counted; empty is a document.
mkdir texts
printf 'Hello world' > texts/b.txt
printf 'Hello\r\n\n{"text": 1}\n' > texts/a.txt
printf 'Hello world' | zstd -q > texts/c.txt.zst
: > texts/d.txt
document no > texts/e.jsonl
expect 0 "${run[@]}" --input texts --plain --append-eod
says "4 documents (1 empty)" "from 4 inputs, 0 lines"
[ "$(numbers /tokens)" = 15496,201,198,198,4895,5239,1298,352,92,198,50256,15496,995,50256,15496,995,50256,50256 ] ||
  fail "plain tokens $(numbers /tokens)"
cp out.h5 plain.h5
expect 0 bash -c 'cat texts/a.txt | "$@"' "$preprocess" "${run[@]}" --input - texts/b.txt texts/c.txt.zst texts/d.txt --plain --append-eod --workers 5
cmp -s out.h5 plain.h5 || fail "plain text from stdin gives other bytes"
printf 'a\xffb' > latin.txt
expect 0 "${run[@]}" --input latin.txt --plain
says "1 places in 1"
refuses 3 "latin.txt: 1 places" "${run[@]}" --input latin.txt --plain --strict
h5dump -a /option.plain plain.h5 | grep -q true || fail "--plain is not recorded"

# P01, P02, P13: empty documents and ends; 3 documents of 10 tokens and 8 workers are 33 tokens.
{ document ""; document "   "; document "x"; document ""; } > empties.jsonl
expect 0 "${run[@]}" --input empties.jsonl --append-eod
[ "$(numbers /tokens),$(numbers /document_offsets)" = 50256,220,220,220,50256,87,50256,50256,0,1,5,7,8 ] ||
  fail "empty documents: $(numbers /tokens),$(numbers /document_offsets)"
for _ in 1 2 3; do document " a a a a a a a a a a"; done > ten.jsonl
expect 0 "${run[@]}" --input ten.jsonl --append-eod --workers 8
says "3 documents (0 empty), 33 tokens"
[ "$(numbers /document_offsets)" = 0,11,22,33 ] || fail "ends $(numbers /document_offsets)"

# On a terminal a line shows text, speed, share and time left, by the compressed position; --quiet and a pipe show none.
for i in $(seq 60000); do document "line $i with some more words in it, $RANDOM"; done | zstd -q -1 > long.jsonl.zst
command -v script > /dev/null || fail "script(1) is missing (package bsdutils)"
script -qec "$(printf '%q ' "${run[@]}") --input long.jsonl.zst" /dev/null > typed 2>&1 < /dev/null || fail "under a terminal: $(tail -c 300 typed)"
line=' MB of text, [0-9]+ MB/s, [0-9]+ % read, [0-9]+:[0-5][0-9]:[0-5][0-9] left'
grep -aqE "^.*[0-9]$line" typed || fail "no progress: $(head -c 300 typed)"
[ "$(tr '\r' '\n' < typed | grep -acE ' (100|9[0-9]) % read, 0:00:0[0-2] left')" -ge 1 ] || fail "the progress does not end: $(tail -c 300 typed)"
script -qec "cat long.jsonl.zst | $(printf '%q ' "${run[@]}") --input -" /dev/null > typed 2>&1 < /dev/null
tr '\r' '\n' < typed | grep -a 'MB/s' | grep -aq '% read' && fail "a pipe has no size, but a share is shown"
script -qec "$(printf '%q ' "${run[@]}") --quiet --input long.jsonl.zst" /dev/null > typed 2>&1 < /dev/null
[ ! -s typed ] || fail "--quiet shows $(head -c 300 typed)"
expect 0 "${run[@]}" --input long.jsonl.zst
case $err in *'MB/s'*) fail "progress without a terminal: $err" ;; esac
finish
