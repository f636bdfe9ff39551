#!/usr/bin/env bash
# Packages: transformers 5.23.0, torch 2.13.0 (CPU). Behaviour: a falcon with ALiBi (`alibi: true`, as falcon-rw) computes
# other logits with eager attention than with sdpa. FalconModel.forward puts the bias into the causal mask, which sdpa
# takes; eager adds the bias to the scores too, so that it counts twice. sdpa with output_attentions=True runs eager's
# code, and differs likewise. Without ALiBi the two agree.
# Fails if eager and sdpa agree with ALiBi, or differ without it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from transformers import FalconConfig, FalconForCausalLM


def difference(alibi):
    config = FalconConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=alibi,
        new_decoder_architecture=False, multi_query=False, parallel_attn=False, bias=True, initializer_range=0.4,
    )
    prompt = torch.arange(2, 42)[None]
    logits = []
    for attention in ("eager", "sdpa"):
        torch.manual_seed(0)
        model = FalconForCausalLM._from_config(config, attn_implementation=attention).eval()
        with torch.inference_mode():
            logits.append(model(prompt, use_cache=False).logits)
    return (logits[0] - logits[1]).abs().max().item()


print("transformers", version("transformers"))
found = {alibi: difference(alibi) for alibi in (True, False)}
print("largest difference of logits between eager and sdpa, by alibi:", found)
sys.exit(0 if found[True] > 0.1 and found[False] < 1e-3 else 1)
PYTHON
