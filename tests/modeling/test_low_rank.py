"""Low-rank updates by each row's adapter on a CPU, at every instruction level that it supports, and in plain torch."""

import pytest
import torch
from low_rank_tables import RANKS, SHAPES, SLOTS, TOLERANCE, check, filled
from native_kernels import needs_kernels

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.low_rank import LowRankFormat, LowRankUpdate, StepSlots
from engine_server.modeling.layers.kernel_sets import native, plain

CPU = torch.device("cpu")


@needs_kernels
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_each_row_gets_the_update_of_its_adapter(
    shape: tuple[int, int], slots: list[int], dtype: torch.dtype
) -> None:
    check(native.add_low_rank, CPU, shape, slots, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_plain_torch_computes_the_same(shape: tuple[int, int], slots: list[int]) -> None:
    check(plain.add_low_rank, CPU, shape, slots, torch.float32)


@needs_kernels
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_rows_bits_depend_on_that_row_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    table = filled(576, 200, dtype, CPU)
    slots = torch.randint(-1, len(RANKS), (90,), dtype=torch.int32).sort().values
    x, out = torch.randn(90, 576).to(dtype), torch.randn(90, 200).to(dtype)
    together = out.clone()
    native.add_low_rank(together, x, slots, *table.tensors)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            order = torch.randperm(90)
            shuffled = out[order].contiguous()
            native.add_low_rank(shuffled, x[order].contiguous(), slots[order].contiguous(), *table.tensors)
            assert torch.equal(shuffled, together[order])
            alone = out.clone()
            for row in range(90):
                native.add_low_rank(
                    alone[row : row + 1], x[row : row + 1], slots[row : row + 1], *table.tensors
                )
            assert torch.equal(alone, together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("count", [5, 1300])
def test_updates_of_an_embedding_copy_a_limited_number_of_adapters_at_a_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of an adapter's b for each of 8192 tokens takes a gigabyte where the rank is 16 and the width 4096."""
    torch.manual_seed(1)
    table, weight = filled(90, 33, torch.float32, CPU), torch.randn(90, 33)
    slots, tokens = StepSlots(), torch.randint(0, 90, (1, count))
    slots.rows = torch.randint(-1, len(RANKS), (count,), dtype=torch.int32)
    embedding = LowRankFormat(DenseFormat(weight), [LowRankUpdate(0, table)], slots, plain.add_low_rank)
    copied: list[int] = []
    einsum = torch.einsum

    def recording(equation: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        copied.append(b.shape[-3])
        return einsum(equation, a, b)

    monkeypatch.setattr(torch, "einsum", recording)
    states = embedding.gather(tokens)[0]
    assert sum(copied) == count and max(copied) <= 512
    for token, slot, state in zip(tokens[0], slots.rows, states, strict=True):
        update = 0 if slot < 0 else (table.a[slot, :, token] @ table.b[slot])[:33]
        torch.testing.assert_close(state, weight[token] + update)
