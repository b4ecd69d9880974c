"""Writes gpt-nano-sort/model.safetensors from the original weights (gpt-nano-sort-model.json of bbycroft/llm-viz), biases of
query, key and value included; only the stored masks (attn.bias) are left out. Arguments: the JSON file, the file to write.

minGPT's Linear weights are [out, in]; the Conv1D weights of Hugging Face's GPT-2 are [in, out]."""
import base64
import json
import struct
import sys

import numpy as np

CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")

tensors = {}
for name, entry in json.load(open(sys.argv[1])).items():
    if name == "config" or name.endswith(".attn.bias"):
        continue
    values = np.frombuffer(base64.b64decode(entry["data"]), np.float32).reshape(entry["shape"])
    tensors[name] = np.ascontiguousarray(values.T if name.endswith(CONV1D) else values)

header, data = {"__metadata__": {"format": "pt"}}, b""
for name, values in tensors.items():
    header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
    data += values.tobytes()
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
