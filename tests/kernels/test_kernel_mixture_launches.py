"""The number of launches of a mixture's layer in decode."""

from pathlib import Path

import pytest
import torch
from interpreted import kernel_platform
from launches import counted
from tiny_experts import by_kind, experts_of, inputs, tiny
from tiny_models import TINY
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core import model_runner
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.gated_experts import receive_gated
from engine_server.modeling.layers.kernel_sets.triton import TRITON
from engine_server.modeling.replacements.gates import kernel_of_gate
from engine_server.modeling.replacements.replacement import Setup

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials

MOST = 12  # launches of a layer: 6 of attention and norms, 2 of the router, 4 of the experts
SIZES = TINY | {
    "vocab_size": 128, "max_position_embeddings": 128, "eos_token_id": 1, "bos_token_id": 0, "head_dim": 8,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip


@by_kind
def test_experts_are_four_launches(kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = experts_of(tiny(kind))
    gate = kernel_of_gate(experts.to(device), Setup(TRITON, device, as_loaded))
    receive_gated(experts, FusedExperts, as_loaded).settle()
    experts._apply_gate = gate
    given = [tensor.to(device) for tensor in inputs()]
    with torch.inference_mode(), counted(monkeypatch) as names:
        experts(*given)
    assert names == ["_plan", "_multiply", "_multiply", "_sum"]


def decode_launches(folder: Path, layers: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what one decode step of a model launches."""
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES | {"num_hidden_layers": layers})).save_pretrained(folder)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="bfloat16", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=32, max_num_seqs=4, disable_log_stats=True, enforce_eager=True,
            async_scheduling=False,
        )
    )  # fmt: skip
    engine.add_request(
        0, {"prompt_token_ids": [5, 6, 7]}, SamplingParams(temperature=0, max_tokens=3, min_tokens=3)
    )
    engine.step()
    with counted(monkeypatch) as names:
        engine.step()
    return names


def test_mixture_layer_is_few_launches(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: kernel_platform(device))
    two, three = (decode_launches(tmp_path / str(layers), layers, monkeypatch) for layers in (2, 3))
    layer = list(three)
    for name in two:
        layer.remove(name)
    assert len(layer) == len(three) - len(two)
    assert len(layer) == MOST, layer
