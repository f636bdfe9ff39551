"""The C++ kernels of modules compared with plain torch, at every instruction level that this CPU supports."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_kernels import needs_kernels
from torch import Tensor

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.attention.native_backend import NativeAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.graphs.equivalents import Operation, elementwise
from engine_server.modeling.layers.kernel_sets import native, plain
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import NativePlatform

pytestmark = [pytest.mark.usefixtures("level"), needs_kernels]
SLACK = {torch.float32: 2e-5, torch.bfloat16: 0.03}


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("dim", [64, 100, 1536])
@pytest.mark.parametrize("rows", [1, 70])
def test_native_modules_equal_torch(rows: int, dim: int, dtype: torch.dtype) -> None:
    """A dtype and rows that the kernels don't support are computed by torch."""
    torch.manual_seed(0)
    x, residual = (torch.randn(1, rows, dim).mul(8).to(dtype) for _ in range(2))
    weight = torch.rand(dim).to(dtype)
    slack = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    for added, offset in product((None, residual), (0.0, 1.0)):
        ours, theirs = (modules.rms_norm(x, weight, 1e-5, offset, added) for modules in (native, plain))
        torch.testing.assert_close(ours, theirs, **slack)
    gate_up = torch.cat((x * 30, residual), -1)
    for name in ("silu_and_mul", "gelu_tanh_and_mul"):
        expected = getattr(plain, name)(gate_up.clone())
        torch.testing.assert_close(getattr(native, name)(gate_up.clone()), expected, **slack)


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("dim", [64, 100, 1536])
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("biased", [True, False])
def test_native_layer_norm_equals_float64(biased: bool, rows: int, dim: int, dtype: torch.dtype) -> None:
    """A dtype and rows that the kernel doesn't support are computed by torch."""
    torch.manual_seed(0)
    x = (torch.randn(1, rows, dim) * 8 + 3).to(dtype)
    weight, bias = torch.rand(dim).to(dtype), torch.randn(dim).to(dtype) if biased else None
    exact = F.layer_norm(x.double(), (dim,), weight.double(), None if bias is None else bias.double(), 1e-5)
    slack = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]
    found = native.layer_norm(x, weight, bias, 1e-5)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, atol=slack, rtol=slack)
    assert torch.equal(native.layer_norm(x[:, -1:], weight, bias, 1e-5), found[:, -1:])


EXACT: list[Callable[[Tensor], Tensor]] = [
    lambda x: x * torch.special.erfc(-x / 2**0.5) / 2,
    lambda x: x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)),
    lambda x: x * torch.sigmoid(1.702 * x),
    torch.relu,
    F.silu,
    torch.tanh,
]
EDGES = torch.tensor([0.0, -0.0, torch.inf, 1e-30, -1e-30, 3e38, -3e38, torch.nan])


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("kind", range(len(EXACT)))
def test_native_activations_equal_float64(kind: int, dtype: torch.dtype) -> None:
    """The relative error is a few roundings, also where the result is tiny. torch computes float16."""
    x = torch.cat((torch.linspace(-12, 12, 4001), torch.linspace(-0.01, 0.01, 1001))).to(dtype)
    if dtype != torch.float16:
        x = torch.cat((x, EDGES.to(dtype)))
    found = native.activate(kind, x)
    assert found.dtype == dtype
    slack = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-7}[dtype]
    torch.testing.assert_close(
        found.double(), EXACT[kind](x.double()), rtol=slack, atol=1e-9 if dtype != torch.float16 else 1e-3,
        equal_nan=True,
    )  # fmt: skip


@given(
    values=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60), kind=st.integers(0, len(EXACT) - 1),
    dtype=st.sampled_from([*SLACK]),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_native_activation_of_an_element_is_independent_of_its_place(
    values: list[float], kind: int, dtype: torch.dtype
) -> None:
    x = torch.tensor(values, dtype=dtype)
    assert torch.equal(native.activate(kind, x)[-1:], native.activate(kind, x[-1:]))


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("dim", [64, 80])
def test_native_rotation_equals_torch(dim: int, dtype: torch.dtype) -> None:
    """A dtype and heads that the kernel doesn't support are computed by torch."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, 33, heads, dim).to(dtype).transpose(1, 2) for heads in (9, 3))
    angles = torch.randn(1, 33, dim // 2).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    ((ours,), (theirs,)) = (modules.rotations(dim, dim) for modules in (native, plain))
    for one, other in zip(ours(query, key, cos, sin), theirs(query, key, cos, sin), strict=True):
        torch.testing.assert_close(one, other, atol=SLACK.get(dtype, 0), rtol=SLACK.get(dtype, 0))
    strided = torch.stack((query, query), -1)[..., 0]
    torch.testing.assert_close(
        ours(strided, key, cos, sin)[0], theirs(query, key, cos, sin)[0], atol=0.03, rtol=0.03
    )


def test_engine_uses_native_attention_where_the_library_loads(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> LLMEngine:
        return LLMEngine.from_engine_args(
            EngineArgs(
                model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=16
            )
        )

    assert start().debug_state().attention == NativeAttention.__name__
    library.kernels.cache_clear()
    monkeypatch.setattr(library, "library_file", lambda level: Path("/nowhere/kernels.so"))
    assert start().debug_state().attention == TorchAttention.__name__


def computed(operation: Operation, out: Tensor, a: Tensor, b: Tensor | float) -> None:
    """Compute out = a OPERATION b by the native function."""
    calls = TRANSLATIONS[operation](out, *[a] if operation is Operation.COPY else [a, b])
    assert calls is not None
    for name, arguments in calls:
        getattr(library.kernels(), name)(*arguments)


TRANSLATIONS: dict[Operation, Callable[..., Any]] = {one: elementwise(one) for one in Operation}
OPERATORS: dict[Operation, Callable[[Tensor, Any], Tensor]] = {
    Operation.ADD: torch.add,
    Operation.SUBTRACT: torch.sub,
    Operation.MULTIPLY: torch.mul,
    Operation.NEGATE: lambda a, b: -a,
    Operation.COPY: lambda a, b: a,
}


@pytest.mark.parametrize("operation", [*Operation])
@given(
    sizes=st.lists(st.integers(1, 19), min_size=1, max_size=4), data=st.data(),
    dtypes=st.lists(st.sampled_from([*SLACK]), min_size=3, max_size=3),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_native_elementwise_operation_equals_float64_rounded_once(
    operation: Operation, sizes: list[int], data: st.DataObject, dtypes: list[torch.dtype]
) -> None:
    """Operands broadcast in any dimension, and their dimensions have any order in memory."""

    def operand(dtype: torch.dtype) -> Tensor:
        shape = [data.draw(st.sampled_from([1, size])) for size in sizes]
        return (
            torch.randn(shape).mT.contiguous().mT.to(dtype)
            if len(sizes) > 1
            else torch.randn(shape).to(dtype)
        )

    torch.manual_seed(0)
    a, b = operand(dtypes[0]), operand(dtypes[1])
    order = data.draw(st.permutations(range(len(sizes))))
    out = torch.zeros([sizes[dim] for dim in order], dtype=dtypes[2]).permute(
        [order.index(dim) for dim in range(len(sizes))]
    )
    computed(operation, out, a, b)
    exact = OPERATORS[operation](a.double(), b.double()).expand(sizes)
    assert torch.equal(out, exact.to(torch.float32).to(dtypes[2]))


def test_native_elementwise_operation_splits_long_rows_among_threads() -> None:
    a, b, out = torch.randn(3, 20_001), torch.randn(3, 1), torch.zeros(3, 20_001)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    computed(Operation.MULTIPLY, out, a, b)
    torch.set_num_threads(before)
    assert torch.equal(out, a * b)


@pytest.mark.parametrize("vocabulary", [1, 7, 8192, 20_003])
@pytest.mark.parametrize("rows", [1, 5])
def test_native_likeliest_tokens_equal_torch(rows: int, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    # Few different numbers, so that the largest one occurs several times.
    logits = torch.randint(-50, 50, (rows, vocabulary)).float()
    largest, tokens = NativePlatform().likeliest(logits)
    assert torch.equal(largest, logits.max(-1).values)
    assert tokens.tolist() == [row.index(max(row)) for row in logits.tolist()]


@pytest.mark.parametrize("place", [0, 9_000, 20_002])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_native_likeliest_tokens_of_numbers_that_are_not_finite(value: float, place: int) -> None:
    masked = torch.full((2, 20_003), -math.inf)
    masked[:, place] = value
    finite = masked.clone().nan_to_num()
    for logits in (masked, finite):
        largest, tokens = NativePlatform().likeliest(logits)
        expected = logits.max(-1)
        assert torch.equal(largest.nan_to_num(-1), expected.values.nan_to_num(-1))
        assert tokens.tolist() == ([0, 0] if value == -math.inf else [place, place])
