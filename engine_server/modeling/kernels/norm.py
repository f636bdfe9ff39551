"""RMSNorm of rows (Zhang and Sennrich 2019, arXiv 1910.07467), alone or of a sum that is kept too."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # elements that one program takes, where a row has fewer


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * (weight + offset), computed in float32, in x's type.

    x: [..., dim] of any strides; weight: [dim]; offset: 1.0 in Gemma's form, whose weights lie around 0.
    """
    rows = x.flatten(0, -3) if x.dim() > 3 else x.reshape(-1, 1, x.shape[-1])  # heads may lie anywhere
    out = x.new_empty(x.shape)
    _launch(out, None, rows, None, weight, eps, offset)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum x + residual, in their type, and the sum's `rms_norm`. x, residual: [..., dim]."""
    out, total = x.new_empty(x.shape), x.new_empty(x.shape)
    _launch(out, total, x.reshape(-1, 1, x.shape[-1]), residual.contiguous(), weight, eps, offset)
    return total, out


def _launch(
    out: Tensor,
    total: Tensor | None,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    offset: float,
) -> None:
    if x.stride(-1) != 1:
        x = x.contiguous()
    outer, inner, dim = x.shape
    width = triton.next_power_of_2(dim)
    rows = max(1, TILE // width)
    _rms_norm[(triton.cdiv(outer * inner, rows),)](
        out, total, x, residual, weight, eps, offset, outer * inner, inner, *x.stride()[:2],
        DIM=dim, WIDTH=width, ROWS=rows, num_warps=min(16, max(4, width // 512)),
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "inner"])
def _rms_norm(
    out, total, x, residual, weight, eps, offset, num_rows, inner, outer_stride, inner_stride,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Row r of x is x[r // inner, r % inner]; all else is contiguous."""
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
