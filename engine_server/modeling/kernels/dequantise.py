"""Products of many rows with quantised weights: dequantised once, into memory of one step, for a library's product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.codes import QuantizedWeight, _weights, shared_inputs

COLUMNS, DEPTH = 16, 512  # of a tile
# Of dense weights at a time. Those of a larger layer, as a language model's head, are multiplied slice by slice.
DENSE_BYTES = 256 << 20


def multiply_dequantised(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return x @ weight.T + bias in x's dtype, with weights rounded to x's dtype.

    x: [T, K].
    """
    codes, scales, minima, bias, bits, group, factors = weight
    (count, depth), columns = x.shape, len(codes)
    out = x.new_empty(count, columns)
    width = min(columns, max(1, DENSE_BYTES // (depth * x.element_size())))
    dense = x.new_empty(width, depth)
    for first in range(0, columns, width):
        part = slice(first, min(first + width, columns))
        rows = dense[: part.stop - first]
        _dequantise[(triton.cdiv(len(rows), COLUMNS), triton.cdiv(depth, DEPTH))](
            rows, codes, scales, minima, factors, first, part.stop, K=depth, BITS=bits, GROUP=group,
            GROUPS=scales.shape[1], SHARED=shared_inputs(depth, group, DEPTH), COLUMNS=COLUMNS, DEPTH=DEPTH,
        )  # fmt: skip
        if bias is None:
            torch.mm(x, rows.T, out=out[:, part])
        else:
            torch.addmm(bias[part], x, rows.T, out=out[:, part])
    return out


@triton.jit(do_not_specialize=["first", "end"])
def _dequantise(
    dense, codes, scales, minima, factors, first, end, K: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Set dense[column - first] for the columns from `first` to `end`."""
    places = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[:, None]
    columns, start = first + places, tl.program_id(1) * DEPTH
    inputs, kept = start + tl.arange(0, DEPTH)[None, :], columns < end
    weights = _weights(
        codes, scales, minima, factors, columns, kept, start, K, BITS, GROUP, GROUPS, SHARED, COLUMNS, DEPTH
    )
    tl.store(dense + places * K + inputs, weights.to(dense.dtype.element_ty), mask=kept & (inputs < K))
