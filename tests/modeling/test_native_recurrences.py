"""Native recurrences compared with float64, at every instruction level that this CPU supports."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from native_kernels import needs_kernels
from torch import Tensor

from engine_server.modeling.attention.states import StepRecurrence
from engine_server.modeling.recurrence import delta_rule, state_space
from engine_server.modeling.recurrence.convolution import Filter
from engine_server.modeling.recurrence.native import NativeConvolution, NativeDeltaRule, NativeStateSpace

pytestmark = [pytest.mark.usefixtures("level"), needs_kernels]
SLACK = {torch.float32: 2e-5, torch.bfloat16: 0.02}
SLOTS = 8


class Sequences(NamedTuple):
    """What a forward continues: the number of tokens, the slot before them (-1: zeros) and that after them, of each."""

    lengths: tuple[int, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Case(NamedTuple):
    """A recurrence with random parameters."""

    # [T, ...] each, a token's elements within larger rows.
    tokens: list[Tensor]
    # [SLOTS, ...]
    states: Tensor
    # Takes the running forward, the states and the tokens; returns [T, ...].
    kernel: Callable[[StepRecurrence, Tensor, Sequence[Tensor]], Tensor]
    # Takes a state and one token's part of each of `tokens`, in float64; returns the result and the next state.
    reference: Callable[..., tuple[Tensor, Tensor]]


def delta(count: int, dtype: torch.dtype, key_heads: int, shared: int, dim: int, width: int) -> Case:
    heads = key_heads * shared
    rows = torch.randn(count, 2 * key_heads * dim + heads * width).to(dtype)
    query, key, value = rows.split([key_heads * dim, key_heads * dim, heads * width], -1)
    decay, beta = -torch.rand(count, heads), torch.rand(count, heads)

    def step(
        state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key = (
            (one * (one.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(shared, 0)
            for one in (query, key)
        )
        state = state * decay.exp()[:, None, None]
        missing = beta[:, None] * (value - torch.einsum("hkv,hk->hv", state, key))
        state = state + torch.einsum("hk,hv->hkv", key, missing)
        return torch.einsum("hkv,hk->hv", state, query) / dim**0.5, state

    return Case(
        [
            query.unflatten(1, (-1, dim)),
            key.unflatten(1, (-1, dim)),
            value.unflatten(1, (-1, width)),
            decay,
            beta,
        ],
        torch.randn(SLOTS, heads, dim, width),
        lambda recurrence, states, tokens: NativeDeltaRule(refused).continued(
            recurrence, states, delta_rule.Tokens(*tokens), True
        ),
        step,
    )


def space(count: int, dtype: torch.dtype, groups: int, shared: int, dim: int, size: int) -> Case:
    heads = groups * shared
    rows = torch.randn(count, heads * dim + 2 * groups * size).to(dtype)
    x, inward, outward = rows.split([heads * dim, groups * size, groups * size], -1)
    steps, rates, skip, bias = (
        torch.randn(count, heads), -torch.rand(heads), torch.randn(heads), torch.randn(heads),
    )  # fmt: skip
    limits = (0.1, 1.5)

    def step(
        state: Tensor, x: Tensor, steps: Tensor, inward: Tensor, outward: Tensor
    ) -> tuple[Tensor, Tensor]:
        inward, outward = (one.repeat_interleave(shared, 0) for one in (inward, outward))
        steps = F.softplus(steps + bias).clamp(*limits)
        state = state * (rates * steps).exp()[:, None, None]
        state = state + torch.einsum("hp,hn->hpn", steps[:, None] * x, inward)
        return torch.einsum("hpn,hn->hp", state, outward) + skip[:, None] * x, state

    rule = state_space.Rule(rates, skip, bias, True, limits, 256)
    return Case(
        [x.unflatten(1, (-1, dim)), steps, inward.unflatten(1, (-1, size)), outward.unflatten(1, (-1, size))],
        torch.randn(SLOTS, heads, dim, size),
        lambda recurrence, states, tokens: NativeStateSpace(refused).continued(
            recurrence, states, state_space.Tokens(*tokens), rule
        ),
        step,
    )


def convolution(
    count: int, dtype: torch.dtype, channels: int, taps: int, has_bias: bool, activation: str | None
) -> Case:
    rows = torch.randn(count, channels + 5).to(dtype)[:, :channels]
    weight = torch.randn(channels, taps).to(dtype)
    bias = torch.randn(channels).to(dtype) if has_bias else None

    def step(state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([state, inputs[None]])
        output = (window * weight.t().double()).sum(0) + (0 if bias is None else bias.double())
        return F.silu(output) if activation else output, window[1:]

    return Case(
        [rows],
        torch.randn(SLOTS, taps - 1, channels).to(dtype),
        lambda recurrence, states, tokens: NativeConvolution(refused).continued(
            recurrence, states, tokens[0], Filter(weight, bias, activation)
        ),
        step,
    )


def refused(*given: object, **options: object) -> None:
    raise AssertionError("the kernel does not compute this shape")


def run(case: Case, sequences: Sequences, states: Tensor, tokens: Sequence[Tensor]) -> Tensor:
    """Continue sequences by the kernel, in place."""
    recurrence = StepRecurrence()
    starts = [sum(sequences.lengths[:number]) for number in range(len(sequences.lengths))]
    recurrence.sequences = torch.tensor([starts, *sequences])
    recurrence.starts, recurrence.lengths = starts, sequences.lengths
    return case.kernel(recurrence, states, tokens)


@st.composite
def sequence_lists(draw: st.DrawFn) -> Sequences:
    """Draw sequences, some of which begin, share a state that they begin from, or go on in place."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    targets = draw(st.permutations(range(SLOTS)))[: len(lengths)]
    unwritten = sorted(set(range(SLOTS)) - set(targets))
    sources = [draw(st.sampled_from([-1, target, *unwritten])) for target in targets]
    return Sequences(tuple(lengths), tuple(sources), tuple(targets))


# Numbers of heads, and sizes of states.
few, many = st.integers(1, 2), st.integers(1, 3)
short, long = st.sampled_from([16, 48]), st.sampled_from([16, 64])
cases = st.one_of(
    st.tuples(st.just(delta), few, many, short, long),
    st.tuples(st.just(space), few, many, short, long),
    st.tuples(
        st.just(convolution),
        st.sampled_from([16, 96]),
        st.integers(2, 5),
        st.booleans(),
        st.sampled_from([None, "silu"]),
    ),
)


@given(cases, sequence_lists(), st.sampled_from(list(SLACK)))
def test_kernel_continues_each_sequence_from_its_state(
    drawn: tuple[Callable[..., Case], ...], sequences: Sequences, dtype: torch.dtype
) -> None:
    make, *settings = drawn
    case = make(sum(sequences.lengths), dtype, *settings)
    after, first = case.states.clone(), 0
    found = run(case, sequences, after, case.tokens)
    expected = case.states.double()
    for length, source, target in zip(*sequences, strict=True):
        state = torch.zeros_like(expected[0]) if source < 0 else case.states[source].double()
        for place in range(first, first + length):
            result, state = case.reference(state, *(one[place].double() for one in case.tokens))
            torch.testing.assert_close(
                found[place].double(), result, rtol=SLACK[dtype], atol=10 * SLACK[dtype]
            )
        expected[target] = state
        first += length
    torch.testing.assert_close(after.double(), expected, rtol=SLACK[dtype], atol=10 * SLACK[dtype])


@given(cases, st.integers(1, 6), st.integers(1, 6), st.sampled_from(list(SLACK)))
def test_bits_do_not_depend_on_the_cuts_of_a_sequence_nor_on_others(
    drawn: tuple[Callable[..., Case], ...], cut: int, rest: int, dtype: torch.dtype
) -> None:
    make, *settings = drawn
    case = make(cut + rest, dtype, *settings)
    whole, parts = case.states.clone(), case.states.clone()
    expected = run(case, Sequences((cut + rest,), (2,), (3,)), whole, case.tokens)
    begun = [one[:cut] for one in case.tokens]
    first = run(case, Sequences((cut,), (2,), (4,)), parts, begun)
    beside = [torch.cat([one[:2], one[cut:]]) for one in case.tokens]
    second = run(case, Sequences((2, rest), (0, 4), (1, 4)), parts, beside)[2:]
    assert torch.equal(torch.cat([first, second]), expected)
    assert torch.equal(parts[4], whole[3])
