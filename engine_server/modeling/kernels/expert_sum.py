"""The weighted sum of the results of a token's experts, in the order of its choices."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # outputs of a token per program


def weighted_sum(parts: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return the sums [tokens, hidden], computed in float32, in the dtype of `parts`.

    parts: [tokens * chosen, hidden], contiguous; top_k_weights: [tokens, chosen], contiguous, of any float type.
    """
    (tokens, chosen), hidden = top_k_weights.shape, parts.shape[1]
    out = parts.new_empty(tokens, hidden)
    _sum[tokens, triton.cdiv(hidden, TILE)](
        out,
        parts,
        top_k_weights,
        HIDDEN=hidden,
        CHOSEN=chosen,
        TILE=min(TILE, triton.next_power_of_2(hidden)),
    )
    return out


@triton.jit
def _sum(out, parts, weights, HIDDEN: tl.constexpr, CHOSEN: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for number in tl.static_range(CHOSEN):
        choice = token * CHOSEN + number
        part = tl.load(parts + choice * HIDDEN + places, mask=places < HIDDEN, other=0.0).to(tl.float32)
        total += part * tl.load(weights + choice).to(tl.float32)
    tl.store(out + token * HIDDEN + places, total.to(out.dtype.element_ty), mask=places < HIDDEN)
