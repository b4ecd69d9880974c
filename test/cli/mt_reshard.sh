#!/usr/bin/env bash
# mt-reshard: statuses, messages, and that nothing is left where nothing was written.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
reshard=$bin/mt-reshard
tiny=$source/test/data/hf/gpt-tiny
nano=$source/test/data/hf/gpt-nano-sort
cd "$scratch" || exit 1

expect 0 "$reshard" --help
grep -q -- '--force' <<<"$out" || fail "--help does not list --force"

# digests CKPT: of every tensor, by name.
digests() { grep -oE '^"[^"]*":|"digest":"[0-9a-f]*"' "$1/manifest.json"; }

# Into a checkpoint, and from there into another one with the same tensors; copying and importing repeat byte by byte.
expect 0 "$reshard" "$tiny" ckpt
says "no tokenizer"
[ -f ckpt/manifest.json ] || fail "no manifest"
expect 0 "$reshard" --load-dir ckpt --save-dir copy
[ "$(digests ckpt | grep -c '^"digest"')" -eq 68 ] || fail "digests: $(digests ckpt | grep -c '^"digest"')"
[ "$(digests ckpt)" = "$(digests copy)" ] || fail "a copy has other tensors"
expect 0 "$reshard" copy copy2
diff -rq copy copy2 > diff.txt || fail "two copies differ: $(cat diff.txt)"
expect 0 "$reshard" "$tiny" again
diff -rq ckpt again > diff.txt || fail "two imports differ: $(cat diff.txt)"

# Weights of 16 bits: half the size; what is widened again and rounded again is the same; equal words from either.
expect 0 "$reshard" --dtype bf16 copy half
expect 0 "$reshard" --dtype fp32 half wide
expect 0 "$reshard" --dtype bf16 wide half2
expect 0 "$reshard" half half3
expect 0 "$reshard" --dtype bf16 "$tiny" half4
for other in half2 half3 half4; do
  [ "$(digests half)" = "$(digests $other)" ] || fail "$other has other tensors than half"
done
[ "$(digests half)" != "$(digests wide)" ] || fail "bf16 and f32 have one digest"
bytes=$(stat -c %s copy/model-pp00-tp00.h5) halved=$(stat -c %s half/model-pp00-tp00.h5)
tensors=$(grep -oE '"bytes":[0-9]+' copy/manifest.json | wc -l)
[ "$halved" -lt $((bytes * 55 / 100 + tensors * 64)) ] || fail "bf16: $halved bytes of $bytes"
grep -q '"dtype":"bf16"' half/manifest.json || fail "half is not bf16"
grep -q '"dtype":"f32"' half/manifest.json && fail "half holds f32"
refuses 2 "dtype" "$reshard" --dtype fp8 copy x
if command -v h5dump > stdout; then
  expect 0 h5dump -d /model/final_layernorm.weight half/model-pp00-tp00.h5
  grep -q bfloat16 <<<"$out" || fail "h5dump does not name the type"
fi
numbers() { # of two checkpoints: rounded by numpy, the first is the second; h5py shows both as numbers
  python3 - "$1" "$2" << 'PY'
import sys
import h5py, numpy
wide, half = (h5py.File(f"{d}/model-pp00-tp00.h5")["model"] for d in sys.argv[1:])
names = []
wide.visititems(lambda name, o: names.append(name) if isinstance(o, h5py.Dataset) else None)
assert len(names) == 68, len(names)
for name in names:
    bits = wide[name][()].astype("<f4").view("<u4").astype("u8")
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("<u4").view("<f4")
    assert (half[name].astype("<f4")[()] == rounded).all(), name
PY
}
if python3 -c 'import h5py' 2> stderr; then
  numbers copy half || fail "h5py shows other numbers in half than numpy rounds"
else
  echo "h5py is not here: numbers of bf16 not compared with it"
fi
rm -r half half2 half3 half4 wide

# Grids: the files of the layout, the same tensors, and back byte by byte from any working directory.
expect 0 "$reshard" copy cut --tensor-model-parallel-size 2 --pipeline_model_parallel_size 2 --max-memory 64Mi
[ "$(cd cut && echo *)" = "index.h5 manifest.json model-pp00-tp00.h5 model-pp00-tp01.h5 model-pp01-tp00.h5 model-pp01-tp01.h5" ] ||
  fail "files of a grid: $(ls cut)"
expect 0 "$reshard" --verify cut
expect 0 "$reshard" --verify copy cut
[ -z "$out" ] || fail "equal checkpoints: $out"
expect 0 "$reshard" cut back && diff -rq copy back > diff.txt || fail "there and back: $(cat diff.txt)"
refuses 2 "--tensor-model-parallel-size 3: the number of attention heads 4" "$reshard" copy x --tensor-model-parallel-size 3
refuses 2 "--pipeline-model-parallel-size 3: the number of layers 4" "$reshard" copy x --pipeline-model-parallel-size 3
refuses 2 "--tensor-model-parallel-size 0" "$reshard" copy x --tensor-model-parallel-size 0
refuses 2 "--data-parallel-size 0" "$reshard" copy x --use-distributed-optimizer
refuses 2 "--use-distributed-optimizer" "$reshard" copy x --data-parallel-size 2
refuses 2 "--max-memory" "$reshard" copy x --max-memory 1M
refuses 2 "--tensor-model-parallel-size 3: the number of attention heads 4" "$reshard" "$tiny" x --tensor-model-parallel-size 3
whole() { # every tensor of an index.h5 is that of the one rank's file
  python3 - "$1" copy/model-pp00-tp00.h5 << 'PY'
import sys
import h5py
index, one = (h5py.File(f)["model"] for f in sys.argv[1:])
names = []
one.visititems(lambda name, o: names.append(name) if isinstance(o, h5py.Dataset) else None)
assert len(names) == 68 and len(index) == len(one), len(names)
for name in names:
    assert (index[name][()] == one[name][()]).all(), name
PY
}
mkdir elsewhere && cp -r cut elsewhere/moved
if python3 -c 'import h5py' 2> stderr; then
  whole elsewhere/moved/index.h5 || fail "h5py shows other numbers in the index of a grid"
else
  echo "h5py is not here: the index of a grid not read with it"
fi
if command -v h5dump > stdout; then
  for file in copy/model-pp00-tp00.h5 elsewhere/moved/index.h5; do
    h5dump -y -w 1 -d /model/layers.3.mlp.dense_4h_to_h.weight "$file" | awk '/DATA {/ { on = 1 } on { print } on && /}/ { exit }' > "dump-${file%%/*}"
  done
  [ "$(wc -w < dump-copy)" -gt 4096 ] && cmp -s dump-copy dump-elsewhere || fail "h5dump shows other numbers in the index"
  rm dump-copy dump-elsewhere
fi
rm -r elsewhere back

# To Hugging Face, and back again.
expect 0 "$reshard" cut theirs --to safetensors --quiet
[ "$(cd theirs && echo *)" = "config.json model.safetensors" ] || fail "files for Hugging Face: $(ls theirs)"
expect 0 "$reshard" theirs back --quiet
expect 0 "$reshard" --verify copy back
expect 0 "$reshard" theirs straight --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --max-memory 64Mi --quiet
expect 0 "$reshard" back cut-back --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --quiet
diff -r straight cut-back > diff.txt || fail "imported straight for a grid, and by way of one rank: $(cat diff.txt)"
expect 0 "$reshard" --diff cut theirs
expect 0 "$reshard" --verify theirs
"$reshard" --list theirs > listed && grep -q '^format *safetensors$' listed || fail "--list of theirs: $(head -3 listed)"
refuses 2 "--tensor-model-parallel-size 3" "$reshard" theirs x --tensor-model-parallel-size 3
rm -r straight cut-back listed
refuses 2 "--to safetensors: that format has no ranks" "$reshard" copy x --to safetensors --pipeline-model-parallel-size 2
refuses 2 "is no checkpoint; make one of it first" "$reshard" theirs x --to safetensors
refuses 2 "--max-shard-size 0" "$reshard" copy x --to safetensors --max-shard-size 0
refuses 2 "--to: expected one of hdf5, safetensors, llmc, gguf" "$reshard" copy x --to pickle
refuses 2 "theirs exists" "$reshard" copy theirs --to safetensors
refuses 2 "is no checkpoint" "$reshard" copy theirs --to safetensors --force
refuses 4 "nowhere" "$reshard" nowhere x --to safetensors
refuses 2 "nothing is written" "$reshard" --list --to safetensors copy
[ ! -e x ] || fail "x was written"
rm -r theirs back

# What is in a checkpoint, and how two differ.
expect 0 "$reshard" --list cut
grep -q '^layout *tensor 2 x pipeline 2$' <<<"$out" || fail "--list: $out"
[ "$(grep -cE '^(layers|embedding|final).* f32 .* \[[0-9, ]+\] .* [0-9a-f]{32}$' <<<"$out")" -eq 68 ] || fail "--list: lines: $out"
expect 0 "$reshard" --list --json cut
python3 -c 'import json, sys; c = json.load(sys.stdin); assert len(c["tensors"]) == 68 and c["layout"]["tensor"] == 2' <<<"$out" ||
  fail "--list --json: $out"
(set -o pipefail; "$reshard" --list --json cut | head -c 1; exit "${PIPESTATUS[0]}") > stdout 2> stderr
status=$?
[ $status -eq 141 ] || [ $status -eq 0 ] || fail "--list | head: status $status"
[ ! -s stderr ] || fail "--list | head: $(cat stderr)"
expect 0 "$reshard" --dtype fp16 cut sixteen --quiet
expect 1 "$reshard" --verify copy sixteen
[ "$out" = "tensor embedding.position_embeddings.weight: f32 [32, 32] and f16 [32, 32]" ] || fail "--verify: $out"
expect 0 "$reshard" --dtype fp32 sixteen wide --quiet
expect 1 "$reshard" --verify copy wide
grep -qE '^tensor embedding.position_embeddings.weight: element \[0, [0-9]+\]: [-0-9.e]+ and [-0-9.e]+$' <<<"$out" || fail "--verify: $out"
expect 1 "$reshard" --diff copy sixteen
[ "$(sed 1d <<<"$out" | wc -l)" -eq 68 ] || fail "--diff: $out"
sed 1d <<<"$out" | cut -f2 > norms
sort -grc norms || fail "--diff is not sorted: $out"
expect 0 "$reshard" --diff copy cut
expect 1 "$reshard" --diff --json copy sixteen
python3 -c 'import json, sys; assert len(json.load(sys.stdin)["tensors"]) == 68' <<<"$out" || fail "--diff --json: $out"
refuses 2 "two checkpoints" "$reshard" --diff copy
refuses 2 "one of --list" "$reshard" --list --verify copy
refuses 2 "nothing is written" "$reshard" --list --force copy
refuses 4 "nowhere" "$reshard" --verify nowhere
cp -r cut damaged && printf 'x' | dd of=damaged/model-pp01-tp00.h5 bs=1 seek=9000 conv=notrunc status=none
refuses 3 "model-pp01-tp00.h5" "$reshard" --verify damaged
refuses 3 "model-pp01-tp00.h5" "$reshard" --verify cut damaged
refuses 3 "model-pp01-tp00.h5" "$reshard" damaged x
rm -r cut sixteen wide damaged norms

# A tokenizer that is named goes with it.
shakespeare=$source/test/data/hf/gpt-shakespeare
expect 0 "$reshard" "$shakespeare" with
[ -f with/tokenizer/vocab.json ] || fail "the tokenizer does not travel"
cp -r "$shakespeare" bare && chmod -R u+w bare && rm bare/vocab.json bare/merges.txt
expect 0 "$reshard" bare named --vocab-file "$shakespeare/vocab.json" --merge_file "$shakespeare/merges.txt"
diff -rq with named > diff.txt || fail "a named tokenizer is not the carried one: $(cat diff.txt)"
head -n -1 "$shakespeare/merges.txt" > merges.txt
refuses 3 "digest" "$reshard" "$shakespeare" x --vocab-file "$shakespeare/vocab.json" --merge-file merges.txt
rm merges.txt
refuses 2 "--merge-file" "$reshard" bare x --vocab-file "$shakespeare/vocab.json"
refuses 3 "1024" "$reshard" "$tiny" x --vocab-file "$shakespeare/vocab.json" --merge-file "$shakespeare/merges.txt"

# Destinations that exist.
refuses 2 "--force" "$reshard" "$nano" ckpt
expect 0 "$reshard" --force "$nano" ckpt
diff -rq ckpt again > /dev/null && fail "--force did not replace"
mkdir -p run/iter_0000001 && echo precious > run/mine
refuses 2 "manifest.json" "$reshard" --force "$nano" run
[ "$(cat run/mine)" = precious ] || fail "--force took what is no checkpoint"
mkdir theirs && echo '{"manifest_version": 3}' > theirs/manifest.json && echo precious > theirs/mine
refuses 2 "no checkpoint" "$reshard" --force "$nano" theirs # another program's file of that name
[ "$(cat theirs/mine)" = precious ] || fail "--force took a folder with another manifest.json"
cp -r copy outer && cp -r copy outer/inner
refuses 2 "lies in" "$reshard" --force outer/inner outer
[ -f outer/inner/manifest.json ] || fail "--force took the source"
refuses 2 "holds inner" "$reshard" --force copy outer # something else in a checkpoint's folder
[ -f outer/inner/manifest.json ] || fail "--force took what is no part of a checkpoint"
refuses 2 "would lie in the checkpoint" "$reshard" copy ckpt/x
rm -r theirs outer
refuses 2 "source" "$reshard" "" x
echo text > file
refuses 2 "exists" "$reshard" "$nano" file
[ "$(ls | sort | tr '\n' ' ')" = "again bare ckpt copy copy2 diff.txt file named run stderr stdout with " ] ||
  fail "something else is left: $(ls | tr '\n' ' ')"

# Misuse.
refuses 2 "source and a destination" "$reshard"
refuses 2 "source and a destination" "$reshard" "$nano"
refuses 2 "" "$reshard" a b c
refuses 2 "force" "$reshard" --forced "$nano" x
says "see mt-reshard --help"

# Missing things and places that cannot be written.
refuses 4 "nowhere" "$reshard" nowhere x
mkdir empty
expect 4 "$reshard" empty x
says "empty"
refuses 4 "/proc/x" "$reshard" "$nano" /proc/x

# Hostile directories: status 3 (the object named), in little time and memory, nothing left.
bad() { # bad TEXT: the directory hf is refused so
  (ulimit -v 4000000 && exec timeout 60 "$reshard" hf dst) > stdout 2> stderr
  local status=$?
  err=$(cat stderr)
  [ $status -eq 3 ] || fail "status $status, expected 3 ($1): $err"
  says "$1"
  [ ! -e dst ] || fail "dst is left ($1)"
  ls -A | grep -q 'tmp' && fail "a temporary is left ($1): $(ls -A)"
}
fresh() { rm -rf hf; cp -r "$nano" hf; chmod -R u+w hf; }
fresh; echo '{"model_type": "gpt2"' > hf/config.json; bad config.json
fresh; printf '\xff\xfe\x00' > hf/config.json; bad config.json
fresh; head -c 3000000 /dev/zero | tr '\0' '[' > hf/config.json; bad config.json
fresh; sed -i 's/"n_layer": 3/"n_layer": 900000000000/' hf/config.json; bad n_layer
fresh; sed -i 's/"n_embd": 48/"n_embd": 3000000000/' hf/config.json; bad config.json
fresh; sed -i 's/"n_layer": 3/"n_layer": 3, "n_layer": 2/' hf/config.json; bad n_layer
fresh; sed -i 's/gelu_new/gelu/' hf/config.json; bad activation_function
fresh; sed -i 's/: false/: true/' hf/config.json; bad lm_head.weight
fresh; printf '\xff\xff\xff\xff\xff\xff\xff\x7f' | dd of=hf/model.safetensors conv=notrunc status=none; bad model.safetensors
fresh; truncate -s 100000 hf/model.safetensors; bad model.safetensors
fresh; truncate -s +1 hf/model.safetensors; bad model.safetensors
fresh; sed -i 's/transformer.h.1.ln_1.bias/transformer.h.1.ln_9.bias/' hf/model.safetensors; bad transformer.h.1.ln_9.bias
says transformer.h.1.ln_1.bias
fresh; sed -i '1s/\[48,144\]/[144,48]/' hf/model.safetensors; sed -i '1s/\[48, 144\]/[144, 48]/' hf/model.safetensors; bad c_attn.weight
fresh; mv hf/model.safetensors part.safetensors
echo '{"weight_map": {"transformer.wte.weight": "../part.safetensors"}}' > hf/model.safetensors.index.json; bad index.json
rm part.safetensors
finish
