"""The C++ kernels for CPUs, compared with plain torch at every instruction level that this CPU supports."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.native_backend import NativeAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.layers.kernel_sets import native, plain
from engine_server.modeling.memory.cache_layout import LayerShape, lay_out
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import NativePlatform
from engine_server.modeling.scoring import Scoring

pytestmark = pytest.mark.skipif(
    not library.loads(), reason="the CPU kernels are not compiled: that takes Linux on x86-64 and g++"
)
CPU = NativePlatform()
KNOWN = {"AVX512": ["AVX512", "AVX2"], "AVX2": ["AVX2"]}.get(torch.backends.cpu.get_cpu_capability(), [])
SLACK = {torch.float32: 2e-5, torch.bfloat16: 0.03}


@pytest.fixture(autouse=True, params=KNOWN)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Load the kernels of one instruction level."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)
    library.kernels.cache_clear()
    yield request.param
    library.kernels.cache_clear()


class Cache:
    """A backend, and the K and V written for each sequence: [context, kv heads, dim], in scattered blocks."""

    def __init__(
        self, kind: type, contexts: list[int], heads: tuple[int, int], dim: int, dtype, window=None
    ) -> None:
        generator = torch.Generator().manual_seed(dim + len(contexts))
        self.heads, self.window, self.contexts = heads, window, np.array(contexts)
        longest = max(contexts)
        layout = lay_out([LayerShape(heads[1], dim, dim, window)], 1 << 20)
        width = -(-longest // 16)
        self.blocks = torch.randperm(width * len(contexts), generator=generator).view(-1, width).int().numpy()
        self.backend = kind(layout, self.blocks.size, 16, dtype, CPU)
        for cache in self.backend.caches:  # as if used by others before
            cache.fill_(torch.nan)
        self.query, self.key, self.value = (
            torch.randn(len(contexts), longest, count, dim, generator=generator).to(dtype)
            for count in (heads[0], heads[1], heads[1])
        )
        slots = [
            self.slots(s, position) for s, context in enumerate(contexts) for position in range(context - 1)
        ]
        before = StepInputs(
            *[np.zeros(0, dtype=np.int64)] * 2,
            [np.array(slots, dtype=np.int64)],
            *[np.zeros(0)] * 3,
            [],
            np.zeros(0, dtype=np.int64),
        )
        self.backend.begin(before)
        for pages, given in zip(
            (self.backend.keys[0], self.backend.values[0]), (self.key, self.value), strict=True
        ):
            rows = [given[s, : context - 1] for s, context in enumerate(contexts)]
            self.backend.write(0, pages, torch.cat(rows))

    def slots(self, sequence: int, position: int) -> int:
        return int(self.blocks[sequence, position // 16]) * 16 + position % 16

    def decode(self, sequences: list[int], **options) -> torch.Tensor:
        """Return [n, query heads, dim]: attention of each sequence's last token over the whole sequence."""
        own, contexts = np.array(sequences), self.contexts[sequences]
        starts, ones = np.arange(len(own)), np.ones(len(own), dtype=np.int64)
        slots = np.array([self.slots(s, self.contexts[s] - 1) for s in sequences])
        last = [part[own, contexts - 1] for part in (self.query, self.key, self.value)]
        scoring = Scoring(0.3, self.window, **options)
        inputs = StepInputs(ones, contexts - 1, [slots], starts, ones, contexts, [self.blocks], own)
        self.backend.begin(inputs)
        return self.backend.attend(0, *last, scoring)

    def exact(self, sequence: int) -> torch.Tensor:
        context = self.contexts[sequence]
        seen = slice(max(0, context - (self.window or context)), context)
        query, key, value = (
            part[sequence].double().transpose(0, 1) for part in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(
            query[:, context - 1 : context], key[:, seen], value[:, seen], scale=0.3, enable_gqa=True
        )[:, 0]


@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("window", [None, 1, 20, 200])
@pytest.mark.parametrize(
    ("dim", "heads"), [(64, (9, 3)), (80, (4, 4)), (96, (10, 2)), (128, (8, 1)), (256, (2, 1))]
)
def test_native_decode_equals_torch(dim: int, heads: tuple[int, int], window, dtype) -> None:
    cache = Cache(NativeAttention, [1, 15, 16, 17, 127, 128, 129, 300], heads, dim, dtype, window)
    output = cache.decode([7, 0, 3, 4, 1, 5, 2, 6])
    for place, sequence in enumerate([7, 0, 3, 4, 1, 5, 2, 6]):
        torch.testing.assert_close(
            output[place].double(), cache.exact(sequence), atol=SLACK[dtype], rtol=SLACK[dtype]
        )


def test_native_decode_is_bitwise_independent_of_batch_composition() -> None:
    cache = Cache(NativeAttention, [200, 3, 129, 40], (6, 2), 64, torch.float32)
    together = cache.decode([0, 1, 2, 3])
    alone = torch.cat([cache.decode([sequence]) for sequence in range(4)])
    assert torch.equal(together, alone)


def test_nan_in_one_sequence_does_not_reach_another() -> None:
    cache = Cache(NativeAttention, [30, 30], (6, 2), 64, torch.float32)
    whole = cache.decode([0, 1])
    cache.key[1, 29] = torch.nan
    spoilt = cache.decode([0, 1])
    assert torch.equal(spoilt[0], whole[0]) and spoilt[1].isnan().all()


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 5.0},
        {"sinks": torch.tensor([1.0, -1, 0, 2])},
        {"alibi": torch.tensor([0.5, 0.25, 0.1, 0])},
    ],
)
def test_unsupported_scores_fall_back_to_torch(options: dict) -> None:
    ours, theirs = (
        Cache(kind, [30, 50], (4, 2), 64, torch.float32) for kind in (NativeAttention, TorchAttention)
    )
    for one in (*ours.backend.caches, *theirs.backend.caches):
        one.nan_to_num_()
    torch.testing.assert_close(ours.decode([0, 1], **options), theirs.decode([0, 1], **options))


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("dim", [64, 100, 1536])
@pytest.mark.parametrize("rows", [1, 70])
def test_native_modules_equal_torch(rows: int, dim: int, dtype: torch.dtype) -> None:
    """A dtype and rows that the kernels don't support are computed by torch."""
    torch.manual_seed(0)
    x, residual = (torch.randn(1, rows, dim).mul(8).to(dtype) for _ in range(2))
    weight = torch.rand(dim).to(dtype)
    slack = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    for given in (None, residual):
        ours, theirs = (modules.rms_norm(x, weight, 1e-5, 0.0, given) for modules in (native, plain))
        torch.testing.assert_close(ours, theirs, **slack)
    gate_up = torch.cat((x * 30, residual), -1)
    expected = plain.silu_and_mul(gate_up.clone())
    torch.testing.assert_close(native.silu_and_mul(gate_up), expected, **slack)


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
    monkeypatch.setattr(library, "library_file", lambda capability: Path("/nowhere/kernels.so"))
    assert start().debug_state().attention == TorchAttention.__name__
