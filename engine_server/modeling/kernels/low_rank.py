"""Low-rank updates of a product's results, by each row's own adapter (LoRA, arXiv 2106.09685).

Two products, as in Punica (arXiv 2310.18547): rows to their adapter's ranks, and ranks to outputs. A program computes a
tile of rows for one adapter after another, so that neighbouring rows of one adapter share its weights, and a CUDA graph
needs no list of groups.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = triton.knobs.runtime.interpret
ROWS, COLUMNS, DEPTH = 16, 64, 64
# The smallest size of a tile in tl.dot.
LEAST_RANK = 16


def add_low_rank(out: Tensor, x: Tensor, slots: Tensor, a: Tensor, b: Tensor, ranks: Tensor) -> None:
    """Add to out [rows, out] the updates of x [rows, in] by the adapters in `slots`, int32 [rows]; -1: none.

    a, b, ranks: see LowRankTable. Sums are in float32. A row's bits depend on that row alone.
    """
    (count, inputs), outputs, most = x.shape, out.shape[1], a.shape[1]
    width = max(LEAST_RANK, triton.next_power_of_2(most))
    states = torch.empty(count, width, dtype=torch.float32, device=x.device)
    dot = tl.float32 if INTERPRETED else None
    tiles = triton.cdiv(count, ROWS)
    shapes = {"MOST": most, "RANKS": width, "ROWS": ROWS, "DOT": dot, "num_warps": 4}
    _shrink[(tiles,)](
        states, x, x.stride(0), slots, a, ranks, count, IN=inputs, PADDED=a.shape[2], DEPTH=DEPTH, **shapes
    )
    _expand[(tiles, triton.cdiv(outputs, COLUMNS))](
        out,
        out.stride(0),
        states,
        slots,
        b,
        ranks,
        count,
        OUT=outputs,
        PADDED=b.shape[2],
        COLUMNS=COLUMNS,
        **shapes,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _shrink(
    states, x, x_stride, slots, a, ranks, num_rows,
    IN: tl.constexpr, PADDED: tl.constexpr, DEPTH: tl.constexpr,
    MOST: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(slots + rows, mask=rows < num_rows, other=-1)
    rank, depth = tl.arange(0, RANKS), tl.arange(0, DEPTH)
    dot_type: tl.constexpr = x.dtype.element_ty if DOT is None else DOT
    results = tl.zeros([ROWS, RANKS], tl.float32)
    slot = tl.max(own)
    while slot >= 0:
        matrix = a + slot.to(tl.int64) * MOST * PADDED
        used = tl.load(ranks + slot)
        total = tl.zeros([ROWS, RANKS], tl.float32)
        for start in range(0, IN, DEPTH):
            inside = start + depth < IN
            left = tl.load(
                x + rows[:, None].to(tl.int64) * x_stride + (start + depth)[None, :],
                mask=(rows < num_rows)[:, None] & inside[None, :], other=0.0,
            )  # fmt: skip
            right = tl.load(
                matrix + rank[None, :] * PADDED + (start + depth)[:, None],
                mask=(rank < used)[None, :] & inside[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(left.to(dot_type), right.to(dot_type), total, input_precision="ieee")
        results = tl.where((own == slot)[:, None], total, results)
        slot = tl.max(tl.where(own < slot, own, -1))
    tl.store(states + rows[:, None] * RANKS + rank[None, :], results, mask=(rows < num_rows)[:, None])


@triton.jit(do_not_specialize=["num_rows"])
def _expand(
    out, out_stride, states, slots, b, ranks, num_rows,
    OUT: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr,
    MOST: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.load(slots + rows, mask=rows < num_rows, other=-1)
    rank = tl.arange(0, RANKS)
    dot_type: tl.constexpr = b.dtype.element_ty if DOT is None else DOT
    left = tl.load(states + rows[:, None] * RANKS + rank[None, :], mask=(rows < num_rows)[:, None], other=0.0)
    results = tl.zeros([ROWS, COLUMNS], tl.float32)
    slot = tl.max(own)
    while slot >= 0:
        right = tl.load(
            b + slot.to(tl.int64) * MOST * PADDED + rank[:, None] * PADDED + columns[None, :],
            mask=(rank < tl.load(ranks + slot))[:, None] & (columns < OUT)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(left.to(dot_type), right.to(dot_type), input_precision="ieee")
        results = tl.where((own == slot)[:, None], total, results)
        slot = tl.max(tl.where(own < slot, own, -1))
    target = out + rows[:, None].to(tl.int64) * out_stride + columns[None, :]
    inside = (rows < num_rows)[:, None] & (columns < OUT)[None, :] & (own >= 0)[:, None]
    base = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, (base + results).to(out.dtype.element_ty), mask=inside)
