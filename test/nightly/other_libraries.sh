#!/bin/bash
# What other libraries make of exported weights: llama.cpp goes on with a GGUF file as mt-generate does, word for word, and
# transformers gives the same logits for an exported directory as for the one that was imported, bit for bit. One command:
#
#   test/nightly/other_libraries.sh BUILD [SCRATCH]
#
# Makes a virtual environment with llama-cpp-python (built there: some ten minutes), torch and transformers of PyPI, unless
# PYTHON names a python that has them.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "${1:?usage: other_libraries.sh BUILD [SCRATCH]}")
scratch=${2:-$build/test/scratch/other_libraries}
rm -rf "$scratch" && mkdir -p "$scratch" && cd "$scratch"
python=${PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv venv
  CMAKE_ARGS="-DGGML_OPENMP=OFF" venv/bin/pip install --quiet llama-cpp-python torch transformers safetensors
  python=$scratch/venv/bin/python
fi
theirs=$here/../data/hf/gpt-shakespeare
"$build/bin/mt-reshard" --quiet "$theirs" one
"$build/bin/mt-reshard" --quiet one cut --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
"$build/bin/mt-reshard" --quiet cut f32.gguf --to gguf
"$build/bin/mt-reshard" --quiet cut f16.gguf --to gguf --dtype fp16
"$build/bin/mt-reshard" --quiet cut exported --to safetensors
cat > check.py << 'PY'
import json, subprocess, sys
import torch
from llama_cpp import Llama
from transformers import AutoTokenizer, GPT2LMHeadModel

generate, theirs = sys.argv[1:]
prompts = ["ROMEO: what light", "First Citizen:\n", "I'll", "the 3 kings,  and"]
models = {name: Llama(name, n_ctx=128, n_threads=2, verbose=False) for name in ("f32.gguf", "f16.gguf")}
same = 0
for prompt in prompts:
    out = subprocess.run([generate, "--load", "one", "--quiet", "--greedy", "--json", "--num-tokens-to-generate", "40", "--prompt", prompt],
                         check=True, capture_output=True, text=True).stdout
    ours = json.loads(out)
    for name, model in models.items():
        text = model.create_completion(prompt, max_tokens=40, temperature=0.0)["choices"][0]["text"]
        if text == ours["text"]:
            same += 1
        else:
            print(f"{name}: {prompt!r}: llama.cpp {text!r}, mt-generate {ours['text']!r}")
a, b = (GPT2LMHeadModel.from_pretrained(path).eval() for path in (theirs, "exported"))
tokenizer = AutoTokenizer.from_pretrained("exported")
equal = 0
with torch.no_grad():
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        equal += torch.equal(a(ids).logits, b(ids).logits)
print(f"llama.cpp: {same} of {len(prompts) * len(models)} texts equal; transformers: {equal} of {len(prompts)} logits equal bit for bit")
sys.exit(same != len(prompts) * len(models) or equal != len(prompts))
PY
"$python" check.py "$build/bin/mt-generate" "$theirs" 2> stderr || { cat stderr >&2; exit 1; }
