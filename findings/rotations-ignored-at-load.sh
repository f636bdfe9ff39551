#!/usr/bin/env bash
# Packages: transformers 5.23.0, compressed-tensors 0.20.0, torch 2.13.0 (CPU). Behaviour: a checkpoint of
# compressed-tensors (W4A16, pack-quantized) may have a transform_config with rotations of activations, which the weights
# were rotated for: location "input" is online by compressed-tensors' TransformLocation.is_online. transformers loads it
# without the rotation and without a word, and computes what the same weights give without transform_config.
# Fails if the logits differ, or the load is refused.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 compressed-tensors==0.20.0 accelerate
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' 2>"$folder/log" || { tail -5 "$folder/log"; exit 1; }
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.transform import TransformConfig
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROTATION = {
    "config_groups": {
        "R4": {"type": "hadamard", "apply": [{"targets": ["re:.*down_proj$"], "location": "input"}]}
    }
}
GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True},
}


def save(model):
    tensors = {}
    for name, weight in model.state_dict().items():
        if not name.endswith("proj.weight"):
            tensors[name] = weight.clone()
            continue
        groups = weight.view(len(weight), -1, 16)
        scales = groups.abs().amax(-1) / 7
        codes = (groups / scales[..., None]).round().clamp(-8, 7).view_as(weight).to(torch.int8)
        tensors[f"{name}_packed"] = pack_to_int32(codes, 4)
        tensors[f"{name}_scale"] = scales
        tensors[f"{name}_shape"] = torch.tensor(weight.shape)
    save_file(tensors, "model/model.safetensors", {"format": "pt"})


def logits(config, **settings):
    quantization = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": GROUP}, **settings,
    }
    settings = config.to_dict() | {"dtype": "float32", "quantization_config": quantization}
    Path("model/config.json").write_text(json.dumps(settings))
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.arange(8)[None]).logits


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=96, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=1,
    initializer_range=0.3, architectures=["LlamaForCausalLM"],
)
Path("model").mkdir()
save(LlamaForCausalLM(config))
assert TransformConfig.model_validate(ROTATION).config_groups["R4"].apply[0].is_online()
with_rotation, without = logits(config, transform_config=ROTATION), logits(config)
print("transformers", version("transformers"), "compressed-tensors", version("compressed-tensors"))
print("largest difference of logits by the rotation:", (with_rotation - without).abs().max().item())
sys.exit(0 if torch.equal(with_rotation, without) else 1)
PYTHON
