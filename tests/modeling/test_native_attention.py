"""Native attention compared with float64, at every instruction level that this CPU supports.

Every cache is full of NaN where no token has been written.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_kernels import needs_kernels
from tiers import tiered

from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.native_backend import NativeAttention, NativeStepAttention
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.quantised import FLOAT8, INT8, quantised
from engine_server.modeling.cache.spec import LayerShape, spec_of
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window
from engine_server.modeling.platform.cpu import NativePlatform

pytestmark = [pytest.mark.usefixtures("level"), needs_kernels]
CPU = NativePlatform()
SLACK = {torch.float32: 2e-5, torch.bfloat16: 0.03}


class HeadSizes(NamedTuple):
    """Numbers and sizes of heads."""

    queries: int
    kv: int
    key_dim: int
    value_dim: int


class Chunk(NamedTuple):
    """The last `tokens` of the first `context` tokens of a sequence, in one step."""

    sequence: int
    tokens: int
    context: int


class Cache:
    """A backend with one layer, and the whole query, K and V of sequences: [context, heads, dim] each."""

    def __init__(
        self,
        contexts: list[int],
        heads: HeadSizes,
        dtype: torch.dtype,
        scoring: Scoring,
        block_size: int = 16,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(contexts) + heads.key_dim)
        self.heads, self.scoring, self.block_size = heads, scoring, block_size
        layout = lay_out(
            [LayerShape(heads.kv, heads.key_dim, heads.value_dim, spec_of(scoring.window))], 1 << 20
        )
        width = -(-max(contexts) // block_size)
        self.blocks = torch.randperm(width * len(contexts), generator=generator).view(-1, width).int().numpy()
        self.backend = NativeAttention(layout, [self.blocks.size], block_size, cache_dtype or dtype, CPU)
        for cache in self.backend.caches:  # as if used by others before
            cache.view(torch.uint8).fill_(0xFF)
        self.tensors = [
            [torch.randn(context, count, dim, generator=generator).to(dtype) for context in contexts]
            for count, dim in (
                (heads.queries, heads.key_dim),
                (heads.kv, heads.key_dim),
                (heads.kv, heads.value_dim),
            )
        ]

        query, *kept = self.tensors
        if cache_dtype is not None:
            parts = [[quantised(given, cache_dtype) for given in of_all] for of_all in kept]
            kept = [[data.double() * scales for data, scales in of_all] for of_all in parts]
        # As `tensors`, with K and V as they can be read from the cache.
        self.read = [query, *kept]

    def run(self, chunks: list[Chunk]) -> list[torch.Tensor]:
        """Run one step of these chunks, and return each one's output [tokens, query heads, value dim]."""
        lengths = np.array([chunk.tokens for chunk in chunks])
        contexts = np.array([chunk.context for chunk in chunks])
        rows = np.array([chunk.sequence for chunk in chunks])
        step = StepInputs.of(rows, lengths, contexts, kinds=1)._replace(tables=[self.blocks])
        step.place(self.blocks[None], self.block_size)
        given = [
            torch.cat([of_all[one.sequence][one.context - one.tokens : one.context] for one in chunks])
            for of_all in self.tensors
        ]
        # As a fused projection gives them: neither tokens nor heads are contiguous.
        given = [torch.stack((one, one), 2)[:, :, 0] for one in given]
        self.backend.begin(step)
        output = self.backend.attend(0, Heads(*given), self.scoring)
        return list(output.split(lengths.tolist()))

    def exact(self, chunk: Chunk) -> torch.Tensor:
        """Return the output of a chunk in float64."""
        query, key, value = (of_all[chunk.sequence][: chunk.context].double() for of_all in self.read)
        group, scoring = self.heads.queries // self.heads.kv, self.scoring
        key, value = (one.repeat_interleave(group, 1).transpose(0, 1) for one in (key, value))
        scores = query[-chunk.tokens :].transpose(0, 1) @ key.mT * scoring.scaling
        distance = torch.arange(chunk.context)[-chunk.tokens :, None] - torch.arange(chunk.context)
        if scoring.softcap is not None:
            scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        if scoring.alibi is not None:
            scores = scores - scoring.alibi.double()[:, None, None] * distance
        if scoring.causal:
            scores = scores.masked_fill(distance < 0, -torch.inf)
        if scoring.window is not None:
            own = torch.arange(chunk.context)[-chunk.tokens :, None]
            scores = scores.masked_fill(distance.abs() >= scoring.window.seen(own), -torch.inf)
        if scoring.sinks is not None:
            sinks = scoring.sinks.double()[:, None, None].expand(-1, chunk.tokens, 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., : chunk.context]
        return (weights @ value).transpose(0, 1)

    def check(self, chunks: list[Chunk], slack: float) -> None:
        for chunk, output in zip(chunks, self.run(chunks), strict=True):
            torch.testing.assert_close(output.double(), self.exact(chunk), atol=slack, rtol=slack)


DIMS = [
    (64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (576, 512), (16, 48), (8, 12), (112, 72),
]  # fmt: skip


@st.composite
def caches(draw: st.DrawFn) -> tuple[Cache, float]:
    """Draw a cache and the largest error of its dtype."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 8))
    heads = HeadSizes(kv_heads * group, kv_heads, *draw(st.sampled_from(DIMS)))
    sinks, slopes = (
        draw(st.sampled_from([None, torch.linspace(least, 0.125, heads.queries)])) for least in (-2, 0)
    )
    causal = draw(st.booleans())
    chunked = st.booleans() if causal else st.just(False)
    scoring = Scoring(
        heads.key_dim**-0.5,
        window=draw(st.none() | st.builds(Window, st.integers(1, 300), chunked)),
        softcap=draw(st.none() | st.floats(1, 50)),
        sinks=sinks,
        alibi=slopes,
        causal=causal,
    )
    dtype = draw(st.sampled_from(sorted(SLACK, key=str)))
    contexts = draw(
        st.lists(st.sampled_from([1, 2, 15, 16, 17, 33, 127, 128, 129, 300]), min_size=1, max_size=3)
    )
    block_size = draw(st.sampled_from([16, 32, 48]))
    cache_dtype = draw(st.none() | st.sampled_from([INT8, FLOAT8]))
    return Cache(contexts, heads, dtype, scoring, block_size, cache_dtype), SLACK[dtype]


@given(drawn=caches(), data=st.data())
def test_chunks_of_prompts_and_decodes_in_one_step_equal_float64(
    drawn: tuple[Cache, float], data: st.DataObject
) -> None:
    """Each sequence runs as two chunks, whose last token is then computed once more by itself."""
    cache, slack = drawn
    contexts = [len(query) for query in cache.tensors[0]]
    firsts = [data.draw(st.integers(1, context)) for context in contexts]
    cache.check([Chunk(s, first, first) for s, first in enumerate(firsts)], slack)
    rests = [context - first for context, first in zip(contexts, firsts, strict=True)]
    cache.check([Chunk(s, rest or 1, contexts[s]) for s, rest in enumerate(rests)], slack)
    cache.check([Chunk(s, 1, context) for s, context in enumerate(contexts)], slack)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("dtype", SLACK)
def test_heads_of_each_size_attend_as_in_float64(dtype: torch.dtype, dims: tuple[int, int]) -> None:
    contexts = [1, 40, 150]
    cache = Cache(contexts, HeadSizes(5, 1, *dims), dtype, Scoring(dims[0] ** -0.5))
    for tokens in (contexts, [1, 1, 1]):
        cache.check([Chunk(s, tokens[s], context) for s, context in enumerate(contexts)], SLACK[dtype])


@pytest.mark.parametrize("cache_dtype", tiered([None, INT8], INT8))
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.thorough),
        {"window": Window(70), "softcap": 20.0, "sinks": torch.linspace(-1, 1, 6)},
    ],
)
def test_bits_depend_on_a_token_and_its_context_alone(dtype: torch.dtype, options: dict, cache_dtype) -> None:
    """Equal bits alone and among others, in chunks and as decodes, with one thread and with two."""
    contexts = [400, 130, 257]
    cache = Cache(contexts, HeadSizes(6, 2, 64, 64), dtype, Scoring(0.3, **options), cache_dtype=cache_dtype)
    whole = cache.run([Chunk(s, context, context) for s, context in enumerate(contexts)])

    alone = [cache.run([Chunk(s, context, context)])[0] for s, context in enumerate(contexts)]
    assert all(map(torch.equal, whole, alone))
    for length in (1, 7, 64, 150):
        chunks = [
            Chunk(0, min(length, 400 - first), min(first + length, 400)) for first in range(0, 400, length)
        ]
        steps = [cache.run([Chunk(1, 1, 130), chunk, Chunk(2, 99, 257)]) for chunk in chunks]
        assert torch.equal(torch.cat([step[1] for step in steps]), whole[0])
        assert all(torch.equal(step[0], whole[1][-1:]) for step in steps)
        assert all(torch.equal(step[2], whole[2][-99:]) for step in steps)
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        last = [cache.run([Chunk(s, 1, context)])[0] for s, context in enumerate(contexts)]
        again = cache.run([Chunk(s, context, context) for s, context in enumerate(contexts)])
        assert all(torch.equal(one[-1:], own) for one, own in zip(whole, last, strict=True))
        assert all(map(torch.equal, whole, again))
    torch.set_num_threads(threads)


@pytest.mark.more
def test_bits_of_a_long_context_that_threads_share_are_those_of_one_thread() -> None:
    """Each of the items into which it is cut has several pieces."""
    cache = Cache([5000], HeadSizes(6, 2, 64, 64), torch.bfloat16, Scoring(0.3))
    cache.run([Chunk(0, 5000, 5000)])
    threads = torch.get_num_threads()
    outputs = []
    for count in (1, 2):
        torch.set_num_threads(count)
        outputs.append(cache.run([Chunk(0, 1, 5000)])[0])
    torch.set_num_threads(threads)
    assert torch.equal(*outputs)
    torch.testing.assert_close(outputs[0].double(), cache.exact(Chunk(0, 1, 5000)), atol=0.03, rtol=0.03)


@pytest.mark.parametrize("dtype", SLACK)
def test_nan_in_tokens_before_the_window_and_after_the_context_does_not_matter(dtype: torch.dtype) -> None:
    """The window starts, and the context ends, within a group of tokens."""
    context, window = 389, 50
    cache = Cache([context], HeadSizes(6, 2, 64, 64), dtype, Scoring(0.3, window=Window(window)))
    cache.run([Chunk(0, window, context)])  # the first tokens to be written
    cache.check([Chunk(0, 1, context)], SLACK[dtype])


def test_nan_in_one_sequence_does_not_reach_another() -> None:
    cache = Cache([30, 30], HeadSizes(6, 2, 64, 64), torch.float32, Scoring(0.125))
    chunks = [Chunk(0, 30, 30), Chunk(1, 30, 30)]
    whole = cache.run(chunks)
    cache.tensors[1][1][29] = torch.nan
    spoilt = cache.run(chunks)
    assert torch.equal(spoilt[0], whole[0]) and spoilt[1][29].isnan().all()


@pytest.mark.parametrize("cache_dtype", [INT8, FLOAT8])
def test_quantised_cache_keeps_any_magnitude_and_nan(cache_dtype: torch.dtype) -> None:
    cache = Cache([40], HeadSizes(1, 1, 64, 64), torch.float32, Scoring(0.125), cache_dtype=cache_dtype)
    cache.tensors[2][0] *= torch.logspace(-20, 20, 40)[:, None, None]
    cache.tensors[2][0][7] = 0
    data, scales = quantised(cache.tensors[2][0], cache_dtype)
    for token in range(40):
        cache.tensors[1][0][token] = 0  # so that a context of equal tokens has the mean of their values
        (output,) = cache.run([Chunk(0, 1, token + 1)])
        expected = (data.double() * scales)[: token + 1].mean(0)
        torch.testing.assert_close(output[0].double(), expected, rtol=1e-5, atol=0)
    cache.tensors[2][0][3, 0, 5] = torch.nan
    assert cache.run([Chunk(0, 40, 40)])[0][3:].isnan().all()


def test_dtypes_and_blocks_that_the_kernels_lack_are_computed_by_torch() -> None:
    for dtype, block_size in ((torch.float16, 16), (torch.float32, 8)):
        cache = Cache([30], HeadSizes(6, 2, 64, 64), dtype, Scoring(0.125), block_size)
        for one in cache.backend.caches:
            one.zero_()
        cache.check([Chunk(0, 30, 30)], 2e-3)


def encode(
    backend: StepAttention, lengths: list[int], given: list[torch.Tensor], scoring: Scoring
) -> torch.Tensor:
    """Run one step of whole prompts through a layer of an encoder. given: query, K and V, [tokens, heads, dim] each."""
    backend.begin(StepInputs.of(range(len(lengths)), lengths, lengths))
    return backend.attend(0, Heads(*given), scoring)


@pytest.mark.parametrize("dtype", [*SLACK, torch.float16])
@pytest.mark.parametrize("dims", [(32, 32), (64, 64), (80, 48)])
@pytest.mark.parametrize("biased, window", [(False, None), (False, Window(20)), (True, None)])
def test_encoders_attend_as_in_float64(
    dtype: torch.dtype, dims: tuple[int, int], biased: bool, window: Window | None
) -> None:
    """The second step is shorter than the first one, whose last prompt is all NaN."""
    generator = torch.Generator().manual_seed(1)
    bias = torch.linspace(-1, 1, 4 * 130 * 130).view(1, 4, 130, 130)
    native = NativeStepAttention()
    for lengths, spoilt in (([130, 1, 33, 16, 40], 40), ([7, 130, 17], 0)):
        total = sum(lengths)
        fused = torch.randn(total, 3, 4, max(dims), generator=generator).to(dtype)
        fused[total - spoilt :] = torch.nan
        given = [part[..., :dim] for part, dim in zip(fused.unbind(1), (*dims[:1] * 2, dims[1]), strict=True)]
        output, exact = (
            encode(
                backend,
                lengths,
                [part.to(of) for part in given],
                Scoring(0.2, window, causal=False, relative_bias=bias.to(of) if biased else None),
            )
            for backend, of in ((native, dtype), (StepAttention(), torch.float64))
        )
        slack = SLACK.get(dtype, 2e-3)
        torch.testing.assert_close(output.double(), exact, atol=slack, rtol=slack, equal_nan=True)
