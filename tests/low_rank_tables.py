"""Tables of low-rank updates, and their formula in float64, for the tests of the kernels."""

import torch
from torch import Tensor

from engine_server.modeling.formats.low_rank import LowRankPair, LowRankTable

# Of the adapter in each slot; None: it doesn't change the layer.
RANKS = [3, 8, 16, None]
SLOTS = {
    "one": [0],
    "few": [-1, 2, 2, -1, 0],
    "prompt": [1] * 20,
    "mixed": [0, 1, 2, 3, -1] * 7,
}
SHAPES = [(32, 48), (100, 70)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def filled(inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> LowRankTable:
    """Return a table with an adapter of each of RANKS."""
    table = LowRankTable(inputs, outputs, len(RANKS), 16, dtype, device)
    for slot, rank in enumerate(RANKS):
        if rank is not None:
            table.put(slot, [LowRankPair(torch.randn(rank, inputs) / 8, torch.randn(rank, outputs) / 8)])
    return table


def updated(out: Tensor, x: Tensor, slots: list[int], table: LowRankTable) -> Tensor:
    """Return `out` with the updates of x, in float64."""
    a, b = table.a[..., : table.inputs].double(), table.b[..., : table.outputs].double()
    rows = out.double()
    for row, slot in enumerate(slots):
        if slot >= 0:
            rows[row] += x[row].double() @ a[slot].T @ b[slot]
    return rows


def check(add_low_rank, device: torch.device, shape: tuple[int, int], slots: list[int], dtype) -> None:
    """Compare a kernel with the formula, on outputs that are a part of a fused product."""
    torch.manual_seed(0)
    inputs, outputs = shape
    table = filled(inputs, outputs, dtype, device)
    x = torch.randn(len(slots), inputs).to(dtype).to(device)
    joined = torch.randn(len(slots), outputs + 9).to(dtype).to(device)
    before = joined.clone()
    out = joined[:, 4 : 4 + outputs]
    expected = updated(out, x, slots, table)
    add_low_rank(out, x, torch.tensor(slots, dtype=torch.int32, device=device), *table.tensors)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(joined[:, :4], before[:, :4]) and torch.equal(joined[:, -5:], before[:, -5:])
    unchanged = [row for row, slot in enumerate(slots) if slot < 0 or RANKS[slot] is None]
    assert torch.equal(joined[unchanged], before[unchanged])
