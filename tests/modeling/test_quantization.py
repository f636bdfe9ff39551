"""Quantisation while loading: rounding to integers and to float8, the layers that are rounded, and their arguments."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from native_kernels import needs_kernels
from tiers import tiered
from tiny_models import TINY, tiny_model

from engine_server import EngineArgs
from engine_server.config import QuantizationConfig
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.codecs import E4M3, FLOAT, INT4, INT8, Codec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.joined import JoinedFormat, join
from engine_server.modeling.formats.packed import PackedFormat, pack
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.reordered import ReorderedFormat
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.tied import TiedFormat
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.loader.passes import LoadPlan, replace_modules
from engine_server.modeling.loader.weights import settle
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform

pytestmark = pytest.mark.usefixtures("shared_trials")

OUTPUTS, INPUTS = 24, 64
SCALE_BYTES = 4


def random_weight(outputs: int = OUTPUTS, seed: int = 0) -> DenseFormat:
    generator = torch.Generator().manual_seed(seed)
    return DenseFormat(
        torch.randn(outputs, INPUTS, generator=generator), torch.randn(outputs, generator=generator)
    )


def reordered(format: GroupedFormat) -> ReorderedFormat:
    return ReorderedFormat(format, torch.randperm(INPUTS, generator=torch.Generator().manual_seed(1)))


def with_minima(dense: DenseFormat, bits: int, group: int) -> GroupedFormat:
    symmetric = rounded_to_integers(dense, bits, group)
    assert isinstance(symmetric, GroupedFormat)
    minima = -3 * symmetric.scales.abs()
    return GroupedFormat.of(symmetric.form, symmetric.parameters() | {"minima": minima}, torch.float32)


FORMATS = {
    "int8": lambda dense: rounded_to_integers(dense, 8, None),
    "int8 in groups": lambda dense: rounded_to_integers(dense, 8, 16),
    "int4": lambda dense: rounded_to_integers(dense, 4, 32),
    "int4, one group": lambda dense: rounded_to_integers(dense, 4, None),
    "int4 with minima": lambda dense: with_minima(dense, 4, 16),
    "int4, reordered": lambda dense: reordered(rounded_to_integers(dense, 4, 16)),
    "fp8": rounded_to_float8,
    "fp8 in groups": lambda dense: GroupedFormat(
        Form(E4M3, FLOAT, 24), dense.weight.to(torch.float8_e4m3fn).view(torch.uint8),
        torch.rand(len(dense.weight), 3) + 0.5, torch.float32, bias=dense.bias,
    ),
}  # fmt: skip
by_format = pytest.mark.parametrize(
    "quantise", [pytest.param(make, id=name) for name, make in FORMATS.items()]
)


@given(st.integers(0, 1 << 30), st.sampled_from([4, 8]), st.sampled_from([None, 8, 32]), st.floats(1e-6, 1e6))
def test_rounding_changes_each_weight_by_at_most_one_step(
    seed: int, bits: int, group: int | None, scale: float
) -> None:
    dense = random_weight(seed=seed)
    weight = dense.weight * scale
    rounded = rounded_to_integers(DenseFormat(weight), bits, group)
    steps = rounded.scales.abs().repeat_interleave(rounded.form.group, -1)
    difference = (rounded.dense() - weight).abs()
    assert (difference <= steps * 1.001).all()
    assert (difference <= steps / 2 * 1.001).float().mean() > 0.95


def test_rounding_to_float8_changes_each_weight_by_at_most_a_sixteenth() -> None:
    dense = random_weight()
    difference = (rounded_to_float8(dense).dense() - dense.weight).abs()
    smallest = dense.weight.abs().amax(-1, keepdim=True) / 448 / 512
    assert (difference <= torch.maximum(dense.weight.abs() / 16, smallest)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_zero_stay_zero(dtype: torch.dtype) -> None:
    zeros = DenseFormat(torch.zeros(4, 32, dtype=dtype))
    for rounded in (
        rounded_to_integers(zeros, 4, 16),
        rounded_to_integers(zeros, 8, None),
        rounded_to_float8(zeros),
    ):
        assert isinstance(rounded, QuantizedFormat) and rounded.dense().dtype == dtype
        assert not rounded.dense().any()


@by_format
def test_products_and_rows_are_those_of_the_dequantised_weight(quantise) -> None:
    format, values = quantise(random_weight()), torch.randn(5, INPUTS)
    expected = format.dequantised()
    torch.testing.assert_close(format.apply(values), expected.apply(values))
    for layout in (pack, as_loaded):
        torch.testing.assert_close(format.arranged(layout).apply(values), expected.apply(values))
    rows = torch.tensor([[3, 0], [3, 23]])
    assert torch.equal(format.gather(rows), expected.gather(rows))


@by_format
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_pieces_give_the_outputs_of_the_whole(quantise, pieces: int) -> None:
    format, values = quantise(random_weight()), torch.randn(5, INPUTS)
    expected = format.apply(values)
    columns = [format.shard(Cut(0, pieces, index)) for index in range(pieces)]
    torch.testing.assert_close(torch.cat([part.apply(values) for part in columns], -1), expected)
    torch.testing.assert_close(join(columns).apply(values), expected)
    rows = [format.shard(Cut(1, pieces, index)) for index in range(pieces)]
    inputs = values.chunk(pieces, dim=-1)
    torch.testing.assert_close(
        sum(part.apply(own) for part, own in zip(rows, inputs, strict=True)), expected, rtol=1e-5, atol=1e-4
    )


def test_parts_in_different_formats_are_multiplied_separately_and_concatenated() -> None:
    values = torch.randn(5, INPUTS)
    parts = [make(random_weight(seed=seed)) for seed, make in enumerate(FORMATS.values())]
    expected = torch.cat([part.apply(values) for part in parts], -1)
    joined = join(parts)
    assert isinstance(joined, JoinedFormat)
    for layout in (as_loaded, pack):
        torch.testing.assert_close(joined.arranged(layout).apply(values), expected, rtol=1e-5, atol=1e-5)


class KeptInteger(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = staticmethod(as_loaded)


def llama(tied: bool) -> Any:
    sizes = TINY | {"vocab_size": 99, "tie_word_embeddings": tied}
    return tiny_model("LlamaForCausalLM", **sizes).requires_grad_(False)


def quantise(model: Any, platform: CpuPlatform, settings: QuantizationConfig) -> None:
    replace_modules(model, LoadPlan(platform, Communicator(), False, {}, settings))
    settle(model)


def config(method: str = "int8", group: int | None = None, head: bool = False) -> QuantizationConfig:
    return QuantizationConfig(method=method, group_size=group, head=head)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [(config("int8"), INT8), (config("int4", 16), INT4), (config("fp8"), E4M3)],
)
def test_linear_layers_are_rounded_and_embedding_and_head_stay_dense(
    settings: QuantizationConfig, kind: Codec
) -> None:
    model = llama(tied=False)
    quantise(model, KeptInteger(), settings)
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.fused.format.form.codes is kind
    assert layer.mlp.down_proj.format.form.codes is kind
    assert isinstance(model.lm_head.format, DenseFormat)
    assert isinstance(model.model.embed_tokens.format, DenseFormat)


@needs_kernels
def test_rounding_to_float8_halves_the_memory_of_linear_layers_on_a_cpu_with_kernels() -> None:
    in_whole_blocks = TINY | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    model = tiny_model("LlamaForCausalLM", **in_whole_blocks).requires_grad_(False).to(torch.bfloat16)
    sizes = [weight.shape for weight in model.model.layers.parameters() if weight.ndim == 2]
    quantise(model, NativePlatform(), config("fp8"))
    tables = [table for part in model.model.layers.modules() for table in getattr(part, "tables", ())]
    assert sum(table.nbytes for table in tables) == sum(
        rows * (columns + SCALE_BYTES) for rows, columns in sizes
    )


@pytest.mark.transformers
@pytest.mark.parametrize("tied", [True, False])
def test_head_and_embedding_are_rounded_to_int8_if_asked(tied: bool) -> None:
    model, tokens = llama(tied), torch.tensor([[3, 98]])
    expected = model.model.embed_tokens(tokens)
    quantise(model, KeptInteger(), config("int4", 16, head=True))
    embedding, head = model.model.embed_tokens, model.lm_head
    assert isinstance(embedding.format, GroupedFormat) and isinstance(head.format, GroupedFormat)
    assert (head.format is embedding.format) == tied and head.format.form.codes is INT8
    torch.testing.assert_close(embedding(tokens), expected, atol=0.02, rtol=0)


def test_tied_head_in_a_layout_that_gathers_no_rows_gathers_from_the_codes() -> None:
    model = llama(tied=True)
    quantise(model, CpuPlatform(), config(head=True))
    format = model.lm_head.format
    assert isinstance(format, TiedFormat) and isinstance(format.product, PackedFormat)
    assert isinstance(format.rows, GroupedFormat)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "awq"}, "quantization is 'awq': expected one of int8, int4, fp8"),
        ({"quantization_group_size": 32}, "quantization_group_size is set without quantization"),
        ({"quantize_head": True}, "quantize_head is set without quantization"),
        ({"quantization": "fp8", "quantization_group_size": 32}, "fp8 has one scale for each output"),
    ],
)  # fmt: skip
def test_arguments_without_effect_are_refused(
    tiny_llama: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True, **options).create_engine_config()


def test_group_size_that_does_not_divide_the_inputs_is_refused_by_name(tiny_llama: Path) -> None:
    with pytest.raises(
        ValueError, match=r"group_size is 64, which doesn't divide the 32 inputs of layers\.0\.self"
    ):
        loaded(tiny_llama, quantization="int4")


@pytest.mark.transformers
@pytest.mark.parametrize("head", tiered([False, True], True))
@pytest.mark.parametrize(
    ("method", "tolerance"),
    tiered([("int8", 0.05), ("int4", 0.5), ("fp8", 0.2)], ("int4", 0.5), more=[("int8", 0.05), ("fp8", 0.2)]),
)
def test_model_rounded_while_loading_computes_nearly_the_same(
    tiny_llama: Path, method: str, head: bool, tolerance: float
) -> None:
    group = 16 if method == "int4" else None
    plain = loaded(tiny_llama)
    rounded = loaded(tiny_llama, quantization=method, quantization_group_size=group, quantize_head=head)
    states = torch.randn(7, 32)
    for one, other in zip(plain.model.layers, rounded.model.layers, strict=True):
        expected = one.mlp(states)
        assert 0 < (other.mlp(states) - expected).norm() / expected.norm() < tolerance
    changed = (rounded.lm_head(states) - plain.lm_head(states)).norm() > 0
    assert changed == head


def loaded(model: Path, **options: Any) -> Any:
    settings = EngineArgs(
        model=str(model), dtype="float32", skip_tokenizer_init=True, **options
    ).create_engine_config()
    return load_model(settings.model_config, settings.load_config, CpuPlatform(), Communicator())
