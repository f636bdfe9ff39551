"""Recordings of steps: the operations that can be replayed, and the reasons why others can't."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from native_kernels import needs_kernels
from torch import Tensor

from engine_server.modeling.graphs.merging import merge_recordings
from engine_server.modeling.graphs.program import Program
from engine_server.modeling.graphs.recording import UnrecordableError, record
from engine_server.modeling.graphs.unused import without_unused
from engine_server.modeling.native.recording import one_operation

pytestmark = needs_kernels
MOST, WIDTH = 9, 37
SIZES = (3, 5, 4)
ROWS = torch.arange(MOST, dtype=torch.int32).flip(0)
VALUES = torch.randn(MOST, WIDTH, generator=torch.Generator().manual_seed(0))
FACTOR = torch.tensor(1.7)
WEIGHT = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))


def program(
    step: Callable[[Tensor, Tensor], None], dtype: torch.dtype = torch.float32
) -> Callable[[int], Tensor]:
    """Return a function that replays a step, which reads and writes rows [n, WIDTH]."""
    given, taken = VALUES.to(dtype), torch.zeros(MOST, WIDTH, dtype=dtype)
    recordings = [record(lambda size=size: step(given[:size], taken[:size]), list) for size in SIZES]
    replayed = Program(without_unused(merge_recordings(recordings, SIZES)), MOST, list)

    def replay(rows: int) -> Tensor:
        taken.zero_()
        replayed.run(rows)
        return taken[:rows]

    return replay


OPERATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x + x.flip(0),
    lambda x: x * 1.7,
    lambda x: x + 1.7,
    lambda x: x - 0.3,
    lambda x: -x[:, ::2].repeat_interleave(2, -1)[:, :WIDTH] - x,
    lambda x: x * x.amin(0) - x[:, :1],
    lambda x: (x.float() * WEIGHT[0] + x).to(x.dtype),
    lambda x: torch.stack((-x[:, 1::2], x[:, :-1:2]), -1).flatten(-2).mul_(x[:, 1:])[:, [0] * WIDTH] * 0.5,
    lambda x: (x.view(-1, 1, WIDTH) * x.mul(0.5).unsqueeze(-1)[:, :4]).transpose(1, 2)[..., 1].contiguous(),
    lambda x: torch.cat([x[:, 5:], x[:, :5]], -1),
    lambda x: x.t().contiguous().t(),
    lambda x: x.view(-1, 1, WIDTH).expand(-1, 2, -1).reshape(-1, 2 * WIDTH)[:, 3 : WIDTH + 3],
    lambda x: torch.tanh(x).add_(x),
    lambda x: (x + x) - (x * 0.7).tanh_(),
    lambda x: torch.nn.functional.embedding(torch.arange(len(x)), WEIGHT.to(x.dtype)) + x,
    lambda x: x - x.amin(0),
    lambda x: x * FACTOR.to(x.dtype),
    lambda x: x.index_select(0, torch.arange(len(x), dtype=torch.int32)),
    lambda x: WEIGHT.to(x.dtype).index_select(0, torch.arange(len(x), dtype=torch.int32).long() + 3),
    one_operation(lambda x: (x + 1 if x[0, 0] > 0 else -x).contiguous()),
]


@given(
    chosen=st.lists(st.integers(0, len(OPERATIONS) - 1), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@example(chosen=[*range(len(OPERATIONS))], dtype=torch.float32)
def test_replay_has_the_bits_of_the_step_for_any_number_of_rows(
    chosen: list[int], dtype: torch.dtype
) -> None:
    def compute(values: Tensor) -> Tensor:
        for number in chosen:
            values = OPERATIONS[number](values)
        return values

    def step(values: Tensor, out: Tensor) -> None:
        out.copy_(compute(values))

    replay = program(step, dtype)
    for rows in range(2, MOST + 1):
        assert torch.equal(replay(rows), compute(VALUES[:rows].to(dtype)))


def depends_on_a_value(x: Tensor, out: Tensor) -> None:
    out.copy_(x if x.sum().item() > 0 else -x)


def depends_on_the_number_of_rows(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2 if len(x) == SIZES[0] else x + x)


def has_a_size_that_is_not_affine(x: Tensor, out: Tensor) -> None:
    out.copy_(x + torch.ones(len(x) ** 2).sum())


def makes_a_tensor_of_python_values(x: Tensor, out: Tensor) -> None:
    out.copy_(x + torch.tensor([float(len(x))] * WIDTH))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (depends_on_a_value, "depends on the values of a tensor"),
        (depends_on_the_number_of_rows, "operations depend on the number of rows"),
        (has_a_size_that_is_not_affine, "not affine"),
        (makes_a_tensor_of_python_values, "from Python values"),
    ],
)
def test_step_that_cannot_be_replayed_is_refused_with_the_reason(
    step: Callable[[Tensor, Tensor], None], reason: str
) -> None:
    with pytest.raises(UnrecordableError, match=reason):
        program(step)


def integers(x: Tensor, out: Tensor) -> None:
    out.copy_(WEIGHT.index_select(0, ROWS[: len(x)].long() + 3) * FACTOR)


@torch.inference_mode()
def test_casts_sums_and_selections_of_integers_are_native() -> None:
    taken = torch.zeros(MOST, WIDTH)
    recordings = [record(lambda size=size: integers(VALUES[:size], taken[:size]), list) for size in SIZES]
    replayed = Program(merge_recordings(recordings, SIZES), MOST, list)
    replayed.run(MOST)
    assert not replayed.torch_names
    assert torch.equal(taken, WEIGHT[ROWS + 3] * FACTOR)


def has_unused_results(x: Tensor, out: Tensor) -> None:
    unused = (x + WEIGHT[0]).sin() * 3
    torch.cat([unused, unused.cumsum(0)])
    out.copy_(x.tanh())


@torch.inference_mode()
def test_operations_whose_results_nobody_reads_are_left_out() -> None:
    taken = torch.zeros(MOST, WIDTH)
    recordings = [
        record(lambda size=size: has_unused_results(VALUES[:size], taken[:size]), list) for size in SIZES
    ]
    replayed = Program(without_unused(merge_recordings(recordings, SIZES)), MOST, list)
    replayed.run(MOST)
    assert (replayed.torch_names, replayed.num_native) == ({"aten.tanh.default": 1}, 1)  # tanh, and the copy
    assert torch.equal(taken, VALUES.tanh())


@torch.inference_mode()
def test_operations_that_write_to_arguments_are_kept() -> None:
    def step(x: Tensor, out: Tensor) -> None:
        out.zero_()
        out.add_(x).tanh_()

    taken = torch.ones(MOST, WIDTH)
    recordings = [record(lambda size=size: step(VALUES[:size], taken[:size]), list) for size in SIZES]
    replayed = Program(without_unused(merge_recordings(recordings, SIZES)), MOST, list)
    taken.fill_(3)
    replayed.run(MOST)
    assert torch.equal(taken, VALUES.tanh())
