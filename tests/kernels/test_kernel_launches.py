"""The launches of a layer in a decode step: kernels of Triton, and operations of torch that compute."""

from collections import Counter

import numpy as np
import pytest
import torch
from interpreted import kernel_platform
from launches import counted
from tiny_models import TINY, run_passes, tiny_model
from transformers import PreTrainedModel

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import LayerShape
from engine_server.modeling.graphs.staging import Staging

SIZES = TINY | {"vocab_size": 64, "head_dim": 16, "pad_token_id": 0}
DECODES, BLOCK_SIZE, CONTEXT = 2, 16, 5
# Operations that are one product, on a GPU and with a CPU's packed weights.
PRODUCTS = ("linear", "mm", "addmm", "_linear_pointwise")


@torch.inference_mode()
def decode_step(
    model: PreTrainedModel, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Counter[str]:
    """Return the launches of a step of decodes."""
    platform = kernel_platform(device)
    run_passes(model, platform)
    shape = LayerShape(model.config.num_key_value_heads, model.config.head_dim, model.config.head_dim)
    layout = lay_out([shape] * model.config.num_hidden_layers, CONTEXT)
    backend = platform.paged_attention(layout, [DECODES], BLOCK_SIZE, torch.float32)
    rows = np.arange(DECODES)
    tables = rows.astype(np.int32).reshape(1, DECODES, 1)
    step = StepInputs.of(rows, np.ones_like(rows), np.full_like(rows, CONTEXT), len(tables), token_ids=rows)
    step.place(tables, BLOCK_SIZE)
    staging = Staging(DECODES, DECODES, tables.shape, platform)
    changes = np.stack([0 * rows, rows, 0 * rows, rows]).astype(np.int32)
    inputs = staging.attach(step, staging.put(step, rows, changes=changes))
    given = {
        "input_ids": torch.from_numpy(rows)[None].to(device),
        "position_ids": torch.from_numpy(step.positions)[None].to(device),
    }
    with ForwardContext(backend).run(inputs), counted(monkeypatch) as names:
        model.base_model(**given, use_cache=False)
    return Counter(names)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_dense_decoder_layer_takes_nine_launches_in_decode(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    few, many = (
        decode_step(tiny_model(name, **SIZES | {"num_hidden_layers": layers}).to(device), device, monkeypatch)
        for layers in (2, 3)
    )
    layer = many - few
    assert (
        sum(layer.pop(name, 0) for name in PRODUCTS) == 4
    )  # of queries, keys and values; output; gate and up; down
    assert layer == {"_rms_norm": 2, "_write_heads": 1, "_attend": 1, "_gated": 1}
