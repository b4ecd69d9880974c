"""usage: forced_model.py FOLDER ID...: a GPT-2 of one layer in Hugging Face's form that gives the ids in turn, then
end-of-text for ever, whatever the prompt's one token is.

Attention and mlp are zero; position i is a large multiple of unit vector i, which the row of the i-th id meets."""
import array
import json
import struct
import sys

folder, ids = sys.argv[1], [int(word) for word in sys.argv[2:]] + [50256]
width, positions, vocab = 8, 8, 50257
assert len(ids) < width

tensors = {"wte.weight": [vocab, width], "wpe.weight": [positions, width], "ln_f.weight": [width], "ln_f.bias": [width]}
for name, shape in (("ln_1.weight", [width]), ("ln_1.bias", [width]), ("ln_2.weight", [width]), ("ln_2.bias", [width]),
                    ("attn.c_attn.weight", [width, 3 * width]), ("attn.c_attn.bias", [3 * width]),
                    ("attn.c_proj.weight", [width, width]), ("attn.c_proj.bias", [width]),
                    ("mlp.c_fc.weight", [width, 4 * width]), ("mlp.c_fc.bias", [4 * width]),
                    ("mlp.c_proj.weight", [4 * width, width]), ("mlp.c_proj.bias", [width])):
    tensors["h.0." + name] = shape

header, data = {}, b""
for name, shape in tensors.items():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    values = array.array("f", [1.0 if "ln_" in name and name.endswith("weight") else 0.0]) * count
    if name == "wte.weight":
        for i, token in enumerate(ids):
            values[token * width + i] = 1.0
    if name == "wpe.weight":
        for position in range(positions):
            values[position * width + min(position, len(ids) - 1)] = 1000.0
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
    data += values.tobytes()
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"model_type": "gpt2", "n_layer": 1, "n_embd": width, "n_head": 2, "n_positions": positions,
           "vocab_size": vocab, "activation_function": "gelu_new"}, open(folder + "/config.json", "w"))
