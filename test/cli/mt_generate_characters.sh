#!/usr/bin/env bash
# Characters of several tokens, from a model that is forced to emit them (G06, G07); weights of 16 bits.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
generate=$bin/mt-generate evaluate=$bin/mt-eval reshard=$bin/mt-reshard
cd "$scratch" || exit 1
command -v python3 > which || { echo "skipped: no python3, which writes the model"; exit 77; }
tokenizer=$source/test/data/tokenizer/gpt2

# forced NAME ID...: a checkpoint that emits the ids.
forced() {
  mkdir -p "hf-$1"
  python3 "$source/test/cli/forced_model.py" "hf-$1" "${@:2}" || fail "forced_model.py"
  expect 0 "$reshard" --quiet "hf-$1" "$1" --vocab-file "$tokenizer/vocab.json" --merge-file "$tokenizer/merges.txt"
}
hex() { od -An -v -tx1 | tr -d ' \n'; }

# G06: one character of two tokens; its bytes, and nothing of it before all of it is there.
forced smile 47249 222
for precision in fp32 bf16; do
  "$generate" --load smile --greedy --precision $precision --num-tokens-to-generate 4 > text || fail "$precision: status $?"
  [ "$(hex < text)" = f09f98800a ] || fail "$precision: bytes $(hex < text)"
done
"$generate" --load smile --greedy --json --num-tokens-to-generate 4 > json || fail "JSON: status $?"
jq -e '.tokens == [47249, 222] and .text == "\ud83d\ude00" and .finish_reason == "end-of-text"' json > which || fail "JSON: $(cat json)"
if command -v strace > which; then
  strace -qq -e trace=write -e write=1 -o trace "$generate" --load smile --greedy --num-tokens-to-generate 4 > text
  grep -q 'write(1, "\\360\\237\\230\\200", 4)' trace || fail "not written in one piece: $(grep 'write(1' trace)"
else
  echo "no strace: the pieces that are written are not compared"
fi

# G07: the limit lies inside it: status 0, "length"; plain text has the bytes as they are, JSON is valid UTF-8.
expect 0 "$generate" --load smile --greedy --num-tokens-to-generate 1
[ "$(hex < stdout)" = f09f980a ] || fail "the half: $(hex < stdout)"
expect 0 "$generate" --load smile --greedy --json --num-tokens-to-generate 1
iconv -f UTF-8 -t UTF-8 stdout > which || fail "the half is not UTF-8"
jq -e '.tokens == [47249] and .text == "\ufffd" and .finish_reason == "length"' stdout > which || fail "the half: $out"
# So it is where another character follows the half.
forced broken 47249 32 47249 222
expect 0 "$generate" --load broken --greedy --num-tokens-to-generate 6
[ "$(hex < stdout)" = f09f9841f09f98800a ] || fail "a half before a letter: $(hex < stdout)"

# Weights in bf16: computed as fp32 or as bf16, they are the same numbers and give the same bits.
hf=$source/test/data/hf
expect 0 "$reshard" --quiet --dtype bf16 "$hf/gpt-shakespeare" half
head -c 3000 "$hf/shakespeare-valid.txt" > text.txt
for precision in fp32 bf16; do
  expect 0 "$evaluate" --load half --valid-data text.txt --json --token-nll nll.$precision --precision $precision
  grep -oE '"nll":[^,}]*' stdout > result.$precision
  expect 0 "$generate" --load half --json --prompt KING "What, ho!" --num-tokens-to-generate 24 --precision $precision
  mv stdout text.$precision
done
[ -s result.fp32 ] && cmp -s result.fp32 result.bf16 || fail "two results: $(cat result.fp32 result.bf16)"
[ -s nll.fp32 ] && cmp -s nll.fp32 nll.bf16 || fail "two lists of nll"
jq -es 'length == 2 and all(.log_probabilities | length == 24)' text.fp32 > which || fail "texts: $(cat text.fp32)"
cmp -s text.fp32 text.bf16 || fail "two texts of one checkpoint"
expect 0 "$generate" --load half --json --prompt KING "What, ho!" --num-tokens-to-generate 24 --precision bf16 --threads 1
cmp -s stdout text.bf16 || fail "bf16, one thread: another text"

# A weight that is finite in f32 and not in bf16 is an error that names it, and nothing is written.
python3 - hf-smile/model.safetensors << 'PY'
import json, struct, sys
bytes_ = bytearray(open(sys.argv[1], "rb").read())
size, = struct.unpack_from("<Q", bytes_)
at = json.loads(bytes_[8:8 + size])["h.0.mlp.c_fc.bias"]["data_offsets"][0]
struct.pack_into("<f", bytes_, 8 + size + at + 4 * 5, 3.4e38)
open(sys.argv[1], "wb").write(bytes_)
PY
expect 0 "$reshard" --quiet hf-smile large
for from in hf-smile large; do
  refuses 3 "mlp" "$reshard" --dtype bf16 $from small
  says "element 5 is 3.4e+38" bf16
  [ -z "$(ls -d small* 2> which)" ] || fail "left behind: $(ls -d small*)"
done
tokens=(--vocab-file "$tokenizer/vocab.json" --merge-file "$tokenizer/merges.txt")
refuses 3 "element 5" "$generate" --load large --greedy --precision bf16 "${tokens[@]}"
refuses 3 "element 5" "$evaluate" --load large --valid-data text.txt --precision bf16 "${tokens[@]}"
finish
