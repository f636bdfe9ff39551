"""RMSNorm of rows (Zhang and Sennrich 2019, arXiv 1910.07467), or of their sum with a residual."""

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.dependent_launch import dependent, start

TILE = 2048  # elements per program, if rows are shorter


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y = x + residual, or x, and y / sqrt(mean(y * y) + eps) * (weight + offset), both in x's dtype.

    x, residual: [..., dim]; weight: [dim]; offset: 1.0 in Gemma's form, whose weights are around 0. The sum is rounded
    to its type first; the rest is computed in float32. x may have any strides, as a slice of heads has.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    dim, out = x.shape[-1], x.new_empty(x.shape)
    total = x if residual is None else x.new_empty(x.shape)
    rows = x.flatten(0, -3) if x.dim() > 3 else x.reshape(-1, 1, dim)
    width = triton.next_power_of_2(dim)
    tile = max(1, TILE // width)
    _rms_norm[(triton.cdiv(x.numel() // dim, tile),)](
        out, total, rows, None if residual is None else residual.contiguous(), weight, eps, offset,
        x.numel() // dim, rows.shape[1], *rows.stride()[:2],
        DIM=dim, WIDTH=width, ROWS=tile, num_warps=min(16, max(4, width // 512)), **dependent(),
    )  # fmt: skip
    return total, out


@triton.jit(do_not_specialize=["num_rows", "inner"])
def _rms_norm(
    out, total, x, residual, weight, eps, offset, num_rows, inner, outer_stride, inner_stride,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Normalise row r of x, which is x[r // inner, r % inner]; the other tensors are contiguous."""
    start(DEPENDENT)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dims = tl.arange(0, WIDTH)
    dims_kept = dims < DIM
    kept = (rows < num_rows)[:, None] & dims_kept[None, :]
    places = (rows * DIM)[:, None] + dims[None, :]
    given = (rows // inner * outer_stride + rows % inner * inner_stride)[:, None] + dims[None, :]
    row = tl.load(x + given, mask=kept, other=0.0)
    if residual is not None:
        row = row.to(tl.float32) + tl.load(residual + places, mask=kept, other=0.0).to(tl.float32)
        row = row.to(total.dtype.element_ty)
        tl.store(total + places, row, mask=kept)
    row = row.to(tl.float32)
    shrink = tl.rsqrt(tl.sum(row * row, 1) / DIM + eps)
    scale = tl.load(weight + dims, mask=dims_kept, other=0.0).to(tl.float32) + offset
    tl.store(out + places, (row * shrink[:, None] * scale[None, :]).to(out.dtype.element_ty), mask=kept)
