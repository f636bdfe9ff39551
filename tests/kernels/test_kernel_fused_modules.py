"""The passes over a model on a GPU with Triton, which must not change its output or unsupported modules."""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from interpreted import kernel_platform
from tiny_models import TINY, run_passes, tiny_model
from torch import Tensor, nn

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.decoder_layer import fused_layer
from engine_server.modeling.layers.kernel_sets.triton import TRITON
from engine_server.modeling.layers.norm import FusedRMSNorm, HeadNorm
from engine_server.modeling.layers.rotation import ChosenRotation
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.replacements.norms import is_norm, offset_of
from engine_server.modeling.replacements.replacement import Setup

SIZES = TINY | {"vocab_size": 64, "num_hidden_layers": 1, "head_dim": 8, "pad_token_id": 0}


class Case(NamedTuple):
    model: str
    replaced: dict[str, int]
    settings: dict[str, Any] = {}  # noqa: RUF012 - never written to


CASES = {
    "Llama": Case("LlamaForCausalLM", {"norms": 3, "layers": 1, "ropes": 1, "deferred": 1, "silu": 1}),
    "normed queries, experts": Case(
        "Qwen3MoeForCausalLM",
        {"norms": 5, "head norms": 2, "layers": 1, "ropes": 1, "deferred": 1, "silu": 1},
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "weights around 0, norms before sums": Case(
        "Gemma2ForCausalLM", {"norms": 5, "ropes": 1, "deferred": 1, "gelu_tanh": 1}, {"query_pre_attn_scalar": 8}
    ),
    "sums with a factor, gelu": Case(
        "GraniteForCausalLM", {"norms": 3, "ropes": 1, "deferred": 1, "gelu": 1},
        {"residual_multiplier": 0.5, "hidden_act": "gelu"},
    ),
    "pairs beside each other, half of them": Case(
        "GlmForCausalLM", {"norms": 3, "layers": 1, "ropes": 1, "deferred": 1}
    ),
    "LayerNorm, each angle twice, another activation": Case(
        "CohereForCausalLM", {"ropes": 1, "deferred": 1}, {"hidden_act": "relu"}
    ),
    "norms of heads after the rotation": Case(
        "HunYuanDenseV1ForCausalLM", {"norms": 5, "layers": 1, "ropes": 1, "silu": 1}
    ),
    "nothing": Case("GPT2LMHeadModel", {}),
}  # fmt: skip


def logits(model: transformers.PreTrainedModel, device: torch.device) -> Tensor:
    return run(model, Probe(), np.arange(3), device, {})


def replaced(model: nn.Module) -> Counter[str]:
    found: Counter[str] = Counter()
    for module in model.modules():
        forward = type(module).forward
        found["norms"] += isinstance(module, FusedRMSNorm)
        found["head norms"] += isinstance(module, HeadNorm)
        found["layers"] += forward is fused_layer
        gate = vars(module).get("_apply_gate")
        if isinstance(gate, partial):
            found[gate.args[0]] += 1
        rope = forward.__globals__.get("apply_rotary_pos_emb")
        if isinstance(rope, ChosenRotation):
            found["ropes"] += rope.chosen not in (None, rope.original)
            found["deferred"] += rope.deferred
    return +found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_model_with_kernel_modules_gives_the_same_logits(device: torch.device, case: Case) -> None:
    model, other = (tiny_model(case.model, **SIZES | case.settings).to(device) for _ in range(2))
    expected = logits(model, device)
    run_passes(model, kernel_platform(device))
    torch.testing.assert_close(logits(model, device), expected, atol=1e-4, rtol=1e-4)
    assert replaced(model) == case.replaced
    assert torch.equal(logits(other, device), expected)
    assert not replaced(other)


class Centred(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class Doubled(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize("kind", [Centred, Doubled, nn.RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_kernel_replaces_only_norms_that_compute_the_same(
    device: torch.device, kind, dtype: torch.dtype
) -> None:
    norm = kind(32, eps=1e-5, device=device, dtype=dtype)
    nn.init.uniform_(norm.weight)
    with torch.inference_mode():
        assert (offset_of(norm, Setup(TRITON, device, as_loaded)) is None) == (kind is not nn.RMSNorm)
        if kind is nn.RMSNorm:
            norm.eps = None  # torch's default for the dtype
            assert not is_norm(norm)
