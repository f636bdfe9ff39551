"""The ropes of GGUF files, as llama.cpp computes them."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from model_sources.gguf_ropes import BASE, CONTEXT, DIMENSIONS, ROPES, TRAINED, llama3_factors, save_rope
from transformers import AutoConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine_server.model_sources import ModelSourceError, resolve
from engine_server.model_sources.gguf.file import GgufFile
from engine_server.model_sources.gguf.rope import set_rope
from engine_server.modeling.layers.rope import is_stretched
from engine_server.modeling.layers.rope_table import RopeTable

pytestmark = pytest.mark.transformers


def expected_angles(
    scaling: dict[str, Any] | None = None, scale_linear: float = 0, factors: Any = None
) -> tuple[np.ndarray, float]:
    """Return what ggml rotates by at each position, [positions, pairs], and what it multiplies by, in float64.

    Source: rope_yarn and ggml_rope_yarn_corr_dims in ggml, with the settings of src/llama-context.cpp.
    """
    scaling = scaling or {}
    kind, factor = scaling.get("type", "linear"), scaling.get("factor", scale_linear) or 1
    scale = 1 if kind == "none" else 1 / factor
    attention = float(scaling.get("attn_factor", 1))
    pairs = np.arange(DIMENSIONS // 2)
    own = np.outer(np.arange(CONTEXT), BASE ** (-2 * pairs / DIMENSIONS))
    own /= 1 if factors is None else factors.astype(np.float64)
    if kind != "yarn":
        return own * scale, attention
    bounds = [
        DIMENSIONS * math.log(TRAINED / (beta * 2 * math.pi)) / (2 * math.log(BASE)) for beta in (32, 1)
    ]
    low, high = max(0, math.floor(bounds[0])), min(DIMENSIONS - 1, math.ceil(bounds[1]))
    ramp = 1 - np.minimum(1, np.maximum(0, (pairs - low) / max(0.001, high - low)))
    return own * scale * (1 - ramp) + own * ramp, attention * (1 + 0.1 * math.log(factor))


def rope_of(folder: Path) -> LlamaRotaryEmbedding:
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, LlamaConfig)
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("keys", ROPES.values(), ids=ROPES)
def test_rope_of_the_converted_model_is_that_of_llama_cpp(
    cache: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    rope = rope_of(resolve(str(save_rope(tmp_path / "m.gguf", **keys))))
    cos, sin = rope(torch.empty(1), torch.arange(CONTEXT)[None])
    angles, attention = expected_angles(**keys)
    for found, function in ((cos, np.cos), (sin, np.sin)):
        both_halves = np.tile(function(angles) * attention, 2)
        np.testing.assert_allclose(found[0].double().numpy(), both_halves, atol=2e-4)


def test_factors_that_do_not_depend_on_the_length_are_tabulated(cache: Path, tmp_path: Path) -> None:
    rope = rope_of(resolve(str(save_rope(tmp_path / "m.gguf", factors=llama3_factors()))))
    assert rope.rope_type == "longrope" and not is_stretched(rope)
    table = RopeTable.of(rope, CONTEXT, torch.empty(0))
    assert table is not None
    positions = torch.arange(CONTEXT)[None]
    assert torch.equal(table(torch.empty(0), positions)[0], rope(torch.empty(0), positions)[0])


def test_title_does_not_choose_the_architecture(cache: Path, tmp_path: Path) -> None:
    assert rope_of(resolve(str(save_rope(tmp_path / "m.gguf", name="mistral")))).rope_type == "default"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"type": "dynamic"}, r"rope\.scaling\.type is 'dynamic'; it takes none, linear, yarn, longrope"),
        ({"type": 3}, r"rope\.scaling\.type is 3; it takes a text"),
        ({"factor": math.nan}, r"rope\.scaling\.factor is nan; it takes a finite number from 0"),
        ({"factor": -2.0}, r"rope\.scaling\.factor is -2.0; it takes a finite number from 0"),
        ({"attn_factor": math.inf}, r"rope\.scaling\.attn_factor is inf; it takes a finite number from 0"),
        ({"type": "x\n" * 1_000_000}, r"rope\.scaling\.type is 'x\\nx"),
    ],
)
def test_scaling_that_llama_cpp_does_not_have_is_refused(
    cache: Path, tmp_path: Path, keys: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelSourceError, match=rf"m\.gguf: llama\.{reason}") as refused:
        resolve(str(save_rope(tmp_path / "m.gguf", scaling=keys)))
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize("factors", [np.ones(3, np.float32), np.zeros(DIMENSIONS // 2, np.float32)])
def test_factors_that_are_no_divisors_are_refused(cache: Path, tmp_path: Path, factors: np.ndarray) -> None:
    with pytest.raises(ModelSourceError, match=r"rope_freqs\.weight has the shape .*it takes \[16\]"):
        resolve(str(save_rope(tmp_path / "m.gguf", factors=factors)))


def phi3_keys(path: Path, *tensors: str) -> GgufFile:
    """Return a file of a Phi-3 of 24 rotated dimensions of 32: its keys and factors, and no weights."""
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_rope_dimension_count(24)
    writer.add_rope_scaling_orig_ctx_len(TRAINED)
    writer.add_rope_scaling_attn_factors(1.25)
    for number, name in enumerate(tensors, 2):
        writer.add_tensor(f"rope_factors_{name}.weight", np.full(12, number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile([path])


def test_factors_for_short_and_long_contexts_are_kept_apart(tmp_path: Path) -> None:
    config = Phi3Config(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=CONTEXT, pad_token_id=0
    )
    set_rope(phi3_keys(tmp_path / "m.gguf", "short", "long"), config)
    for length, factor in ((TRAINED, 2), (TRAINED + 1, 3)):
        found, attention = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=length)
        plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, 24, 2) / 24)
        torch.testing.assert_close(found, plain / factor)
        assert attention == 1.25


def test_factors_for_long_contexts_alone_are_refused(tmp_path: Path) -> None:
    config = Phi3Config(hidden_size=64, num_attention_heads=2, pad_token_id=0)
    with pytest.raises(ModelSourceError, match=r"one of rope_factors_long\.weight and rope"):
        set_rope(phi3_keys(tmp_path / "m.gguf", "long"), config)


def test_part_of_a_head_is_not_rotated_where_the_architecture_has_no_such_part(tmp_path: Path) -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=2)
    with pytest.raises(ModelSourceError, match=r"phi3\.rope\.dimension_count is 24; it takes 32"):
        set_rope(phi3_keys(tmp_path / "m.gguf"), config)
