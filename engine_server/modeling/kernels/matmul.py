"""Linear layers whose rows are bitwise independent of the other rows.

A library chooses its matrix product by shape, so that the tiles, the order of summation and the rounding depend on
the number of rows. Here tiles and order are fixed, and an element is one running sum over K, as described by He and
Thinking Machines Lab (Defeating Nondeterminism in LLM Inference, 2025,
https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference).
"""

import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = triton.knobs.runtime.interpret
ROWS, COLUMNS, DEPTH_BYTES = 128, 64, 128  # of a tile: with 4 stages, 96 KiB of shared memory


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias in x's dtype, summed in float32: each row is bitwise independent of the others.

    x: [..., K]; weight: [N, K], contiguous; bias: [N]; all of one type: float16, bfloat16 or float32.
    """
    columns, depth = weight.shape
    out = x.new_empty(*x.shape[:-1], columns)
    x = x.reshape(-1, depth).contiguous()
    grid = (triton.cdiv(len(x), ROWS), triton.cdiv(columns, COLUMNS))
    _linear[grid](
        out, x, weight, bias, len(x), N=columns, K=depth,
        ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH_BYTES // x.element_size(),
        DOT=tl.float32 if INTERPRETED else None, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _linear(
    out, x, weight, bias, num_rows, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    depth = tl.arange(0, DEPTH)
    dot_type: tl.constexpr = x.dtype.element_ty if DOT is None else DOT
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, K, DEPTH):
        inside = start + depth < K
        left = tl.load(
            x + rows * K + (start + depth)[None, :], mask=(rows < num_rows) & inside[None, :], other=0.0
        )
        right = tl.load(
            weight + columns * K + (start + depth)[:, None], mask=(columns < N) & inside[:, None], other=0.0
        )
        total = tl.dot(left.to(dot_type), right.to(dot_type), total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(out + rows * N + columns, total.to(out.dtype.element_ty), mask=(rows < num_rows) & (columns < N))
