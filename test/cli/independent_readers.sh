#!/usr/bin/env bash
# What others' libraries read of what mt-reshard writes: the weights of a grid, exported, by safetensors and gguf from PyPI, beside the
# checkpoint's own HDF5 files by h5py. Makes a virtual environment; where PyPI cannot be reached the test is skipped.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
cd "$scratch" || exit 1
python3 -m venv venv > venv.log 2>&1 || { cat venv.log; fail "no virtual environment (python3-venv)"; exit 1; }
if ! venv/bin/pip install --quiet safetensors gguf numpy h5py > pip.log 2>&1; then
  if grep -qiE 'connection|timed out|name resolution|proxy|network' pip.log; then
    echo "skipped: PyPI cannot be reached: $(tail -n 1 pip.log)"
    exit 77
  fi
  cat pip.log
  exit 1
fi

expect 0 "$bin/mt-reshard" --quiet "$source/test/data/hf/gpt-shakespeare" one
expect 0 "$bin/mt-reshard" --quiet one cut --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2
expect 0 "$bin/mt-reshard" --quiet cut theirs --to safetensors
expect 0 "$bin/mt-reshard" --quiet cut shards --to safetensors --max-shard-size 1M
expect 0 "$bin/mt-reshard" --quiet cut sixteen --to safetensors --dtype fp16
expect 0 "$bin/mt-reshard" --quiet theirs back --dtype keep
expect 0 "$bin/mt-reshard" --verify one back
expect 0 "$bin/mt-reshard" --quiet cut whole.gguf --to gguf
expect 0 "$bin/mt-reshard" --quiet cut half.gguf --to gguf --dtype fp16
expect 0 "$bin/mt-reshard" --quiet cut whole.bin --to llmc
expect 0 "$bin/mt-reshard" --quiet whole.bin from-llmc --vocab-file theirs/vocab.json --merge-file theirs/merges.txt
expect 0 "$bin/mt-reshard" --verify one from-llmc
for other in theirs shards whole.gguf whole.bin; do expect 0 "$bin/mt-reshard" --verify one "$other"; done
expect 1 "$bin/mt-reshard" --verify one half.gguf
cat > read.py << 'PY'
import json, os, sys
import h5py, numpy
from safetensors import safe_open
from safetensors.numpy import load_file

ours = h5py.File("cut/index.h5")["model"]
config = json.load(open("theirs/config.json"))
h, layers = config["n_embd"], config["n_layer"]
theirs = load_file("theirs/model.safetensors")
with safe_open("theirs/model.safetensors", "np") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
taken = set()


def same(name, value):
    found = theirs["transformer." + name]
    assert found.dtype == numpy.float32 and found.shape == value.shape, (name, found.dtype, found.shape, value.shape)
    assert found.tobytes() == numpy.ascontiguousarray(value).tobytes(), name
    taken.add("transformer." + name)


same("wte.weight", ours["embedding.word_embeddings.weight"][()])
same("wpe.weight", ours["embedding.position_embeddings.weight"][()])
same("ln_f.weight", ours["final_layernorm.weight"][()])
same("ln_f.bias", ours["final_layernorm.bias"][()])
for i in range(layers):
    def get(name):
        return ours[f"layers.{i}.{name}"][()]
    qkv = [f"self_attention.{part}" for part in ("query", "key", "value")]
    same(f"h.{i}.attn.c_attn.weight", numpy.concatenate([get(part + ".weight").T for part in qkv], axis=1))
    same(f"h.{i}.attn.c_attn.bias", numpy.concatenate([get(part + ".bias") for part in qkv]))
    for there, here in (("attn.c_proj", "self_attention.dense"), ("mlp.c_fc", "mlp.dense_h_to_4h"), ("mlp.c_proj", "mlp.dense_4h_to_h")):
        same(f"h.{i}.{there}.weight", get(here + ".weight").T)
        same(f"h.{i}.{there}.bias", get(here + ".bias"))
    for there, here in (("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm")):
        for part in ("weight", "bias"):
            same(f"h.{i}.{there}.{part}", get(f"{here}.{part}"))
assert taken == set(theirs), taken ^ set(theirs)
index = json.load(open("shards/model.safetensors.index.json"))
files = sorted(set(index["weight_map"].values()))
assert len(files) > 3 and files == sorted(f for f in os.listdir("shards") if f.endswith(".safetensors")), files
shards = {}
for file in files:
    part = load_file("shards/" + file)
    assert all(index["weight_map"][name] == file for name in part), file
    shards.update(part)
assert set(shards) == set(theirs)
for name, value in theirs.items():
    assert shards[name].tobytes() == value.tobytes(), name
assert index["metadata"]["total_size"] == sum(v.nbytes for v in theirs.values())
half = load_file("sixteen/model.safetensors")
for name, value in theirs.items():
    assert (half[name] == value.astype(numpy.float16)).all() and half[name].dtype == numpy.float16, name

import gguf

names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
         "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
for file, narrow in (("whole.gguf", numpy.float32), ("half.gguf", numpy.float16)):
    reader = gguf.GGUFReader(file)
    tensors = {t.name: t for t in reader.tensors}
    assert len(tensors) == len(theirs)
    for name, value in theirs.items():
        words = name.removeprefix("transformer.").split(".")
        block = f"blk.{words[1]}." if words[0] == "h" else ""
        rest = words[2:] if block else words
        there = block + names[".".join(rest[:-1])] + "." + rest[-1]
        wanted = value.T if rest[-2].startswith("c_") and value.ndim == 2 else value
        if value.ndim == 2 and words[0] != "wpe":
            wanted = wanted.astype(narrow)
        found = tensors[there].data
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all(), there
    key = lambda name: reader.fields[name].contents()
    assert key("general.architecture") == "gpt2" and key("gpt2.context_length") == config["n_positions"]
    assert key("gpt2.block_count") == layers and key("gpt2.embedding_length") == h
    assert key("gpt2.feed_forward_length") == config["n_inner"] and key("gpt2.attention.head_count") == config["n_head"]
    assert abs(key("gpt2.attention.layer_norm_epsilon") - 1e-5) < 1e-12
    assert key("general.file_type") == (0 if narrow == numpy.float32 else 1)
    vocab = json.load(open("theirs/vocab.json"))
    assert key("tokenizer.ggml.tokens") == sorted(vocab, key=vocab.get)
    kinds = key("tokenizer.ggml.token_type")
    assert [i for i, kind in enumerate(kinds) if kind != 1] == [vocab["<|endoftext|>"]] and len(kinds) == len(vocab)
    merges = [line for line in open("theirs/merges.txt").read().split("\n") if line and not line.startswith("#version")]
    assert key("tokenizer.ggml.merges") == merges and key("tokenizer.ggml.pre") == "gpt-2"
    assert key("tokenizer.ggml.eos_token_id") == key("tokenizer.ggml.bos_token_id") == vocab["<|endoftext|>"]
print(f"{len(taken)} tensors equal bit for bit, {len(files)} shards")
PY
venv/bin/python read.py || fail "another reader sees other tensors"
finish
