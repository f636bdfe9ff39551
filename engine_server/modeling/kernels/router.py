"""The choice of a token's experts by the logits of a router."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def choose(logits: Tensor, chosen: int, normalised: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights, of `dtype`, and the experts, int64, of each token's choices, the largest first.

    logits: [tokens, experts], contiguous. Weights are softmax's of all experts, or of the chosen ones if `normalised`;
    both are [tokens, chosen]. Of equal logits the first is chosen.
    """
    tokens, experts = logits.shape
    weights = logits.new_empty(tokens, chosen, dtype=dtype)
    index = logits.new_empty(tokens, chosen, dtype=torch.int64)
    _choose[(tokens,)](
        weights, index, logits, EXPERTS=experts, CHOSEN=chosen, NORMALISED=normalised,
        WIDTH=triton.next_power_of_2(experts), PLACES=triton.next_power_of_2(chosen), num_warps=1,
    )  # fmt: skip
    return weights, index


@triton.jit
def _choose(
    weights, index, logits, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, NORMALISED: tl.constexpr,
    WIDTH: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    experts, places = tl.arange(0, WIDTH), tl.arange(0, PLACES)
    left = tl.load(logits + token * EXPERTS + experts, mask=experts < EXPERTS, other=-float("inf")).to(
        tl.float32
    )
    largest = tl.max(left, 0)
    total = tl.sum(tl.exp(left - largest), 0)
    values = tl.full([PLACES], -float("inf"), tl.float32)
    found = tl.zeros([PLACES], tl.int32)
    for place in tl.static_range(CHOSEN):
        best = tl.max(left, 0)
        expert = tl.min(tl.where(left == best, experts, EXPERTS - 1), 0)  # the last one if all are NaN
        values = tl.where(places == place, best, values)
        found = tl.where(places == place, expert, found)
        left = tl.where(experts == expert, -float("inf"), left)
    powers = tl.exp(values - largest)
    if NORMALISED:
        total = tl.sum(powers, 0)
    target, kept = token * CHOSEN + places, places < CHOSEN
    tl.store(weights + target, (powers / total).to(weights.dtype.element_ty), mask=kept)
    tl.store(index + target, found.to(tl.int64), mask=kept)
