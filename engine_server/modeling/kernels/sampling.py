"""Sampling with no sort and one full read of the logits: temperature, min-p, top-k, top-p, and a draw.

The first kernel computes the largest logit and the mass of each group of tokens. The k-th largest of the group maxima
is at most the k-th largest logit, so that every token that top-k keeps is in a group that reaches it, and likewise for
top-p: one program per row finds these groups, reads only them again, and draws. Thresholds are found by radix
selection, some bits of the floats' ordered patterns at a time (Alabi et al. 2012, "Fast k-selection algorithms for
graphics processing units"). The order of sums depends on the row alone, so tokens are independent of other rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.sampling_parameters import PARAMETERS

WORDS = tl.constexpr(PARAMETERS.itemsize // 4)
GROUP = tl.constexpr(32)  # tokens
SURVEYED = 128  # groups per program
CHUNK = 2048  # logits that a program compares together
DIGITS, BITS = tl.constexpr(16), tl.constexpr(4)  # a digit of a threshold, which has 32 bits
LOWEST = tl.constexpr(-0x7F800001)  # minus infinity as an ordered pattern


def sample(logits: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token for each row, int64 [n], and the largest logit over temperature, float32 [n]: NaN for a NaN.

    logits: [n, vocabulary] of any float type, of unit stride in the last; parameters: int32 [n or more, WORDS], rows
    of PARAMETERS. The token is the first whose cumulative probability exceeds the uniform number of (seed, choice,
    index); all tokens that tie at a threshold are kept, and the first of the likeliest is the greedy token.
    """
    rows, vocabulary = logits.shape
    groups = triton.cdiv(vocabulary, GROUP.value)
    maxima = logits.new_empty((rows, groups), dtype=torch.float32)
    masses, chosen = torch.empty_like(maxima), torch.empty_like(maxima, dtype=torch.int32)
    largest, tokens = maxima.new_empty(rows), logits.new_empty(rows, dtype=torch.int64)
    width, parameters = triton.next_power_of_2(groups), parameters.view(torch.uint32)
    sizes = (logits.stride(0), vocabulary, groups)
    _survey[(rows, triton.cdiv(groups, SURVEYED))](
        logits, parameters, maxima, masses, *sizes, GROUPS=SURVEYED, num_warps=4
    )
    _draw[(rows,)](
        logits, parameters, maxima, masses, chosen, tokens, largest, *sizes,
        WIDTH=width, CHUNK=min(CHUNK, width * GROUP.value), num_warps=16,
    )  # fmt: skip
    return tokens, largest


@triton.jit
def _scale(parameters):
    """Return the factor of a row's logits."""
    temperature = tl.load(parameters).to(tl.float32, bitcast=True)
    return 1 / tl.where(temperature == 0, 1.0, temperature)


@triton.jit
def _scaled(logits, places, size, scale):
    return tl.load(logits + places, mask=places < size, other=float("-inf")).to(tl.float32) * scale


@triton.jit
def _survey(logits, parameters, maxima, masses, row_stride, vocabulary, groups, GROUPS: tl.constexpr):
    """Store the largest x = logit / temperature of each group of a row (axis 0), and the sum of e^(x - largest)."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    tokens = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = _scaled(logits + row * row_stride, tokens, vocabulary, _scale(parameters + row * WORDS))
    most = tl.max(x, 1)
    mass = tl.sum(tl.exp(x - tl.where(most == float("-inf"), 0, most)[:, None]), 1)
    tl.store(maxima + row * groups + group, most, mask=group < groups)
    tl.store(masses + row * groups + group, mass, mask=group < groups)


@triton.jit
def _draw(
    logits, parameters, maxima, masses, chosen, tokens, largest, row_stride, vocabulary, groups,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Draw one row's token. Overwrites `masses` and `chosen` [rows, groups] with the groups that may contain it."""
    row = tl.program_id(0).to(tl.int64)
    logits, parameters = logits + row * row_stride, parameters + row * WORDS
    maxima, masses, chosen = maxima + row * groups, masses + row * groups, chosen + row * groups
    scale = _scale(parameters)
    greedy = tl.load(parameters) == 0
    min_p = tl.load(parameters + 1).to(tl.float32, bitcast=True)
    top_p = tl.load(parameters + 2).to(tl.float32, bitcast=True)
    top_k = tl.load(parameters + 3).to(tl.int32)
    top_k = tl.where(top_k < vocabulary, top_k, 0)

    group = tl.arange(0, WIDTH)
    most = tl.load(maxima + group, mask=group < groups, other=float("-inf"))
    top = tl.max(most, 0)
    shift = tl.where(top == float("-inf"), 0, top)
    mass = tl.load(masses + group, mask=group < groups, other=0.0) * tl.exp(most - shift)
    total = tl.sum(mass, 0)
    tl.store(largest + row, tl.where(total == total, top, total))

    floor = top + tl.log(min_p)  # smaller logits are filtered out
    filtered = (min_p > 0) | (top_k > 0) | (top_p < 1)
    if filtered:
        cut, nucleus = floor, (top_p < 1) & (top_k == 0) & (min_p == 0)  # of the row's total mass
        if (top_k > 0) | nucleus:
            target = tl.where(nucleus, top_p * total, top_k.to(tl.float32))
            cut = tl.maximum(
                cut, _threshold(maxima, None, groups, groups, 1.0, shift, target, top_k > 0, CHUNK)
            )
        kept = (most >= cut) & (group < groups)
        tl.store(chosen + tl.cumsum(kept.to(tl.int32), 0) - 1, group, mask=kept)
        count = tl.sum(kept.to(tl.int32), 0)
        tl.debug_barrier()
        if top_k > 0:
            found = _threshold(
                logits, chosen, count * GROUP, vocabulary, scale, shift, top_k.to(tl.float32), True, CHUNK
            )
            floor = tl.maximum(floor, found)
        weighed = _weigh(logits, chosen, count, vocabulary, scale, shift, floor, masses, CHUNK)
        total = tl.where(nucleus, total, weighed)
        if top_p < 1:
            found = _threshold(
                logits, chosen, count * GROUP, vocabulary, scale, shift, top_p * total, False, CHUNK
            )
            floor = tl.maximum(floor, found)
            _weigh(logits, chosen, count, vocabulary, scale, shift, floor, masses, CHUNK)
        tl.debug_barrier()
        mass = tl.load(masses + group, mask=group < count, other=0.0)
        total = tl.sum(mass, 0)

    number = tl.where(greedy, 0.0, _uniform(parameters))
    place, rest = _pick(mass, number * total, WIDTH)
    if filtered:
        place = tl.load(chosen + tl.minimum(place, groups - 1))
    place = tl.minimum(tl.maximum(place, 0), groups - 1)  # a row of NaN has no such group
    members = place * GROUP + tl.arange(0, GROUP)
    x = _scaled(logits, members, vocabulary, scale)
    place, _ = _pick(tl.where(x >= floor, tl.exp(x - shift), 0.0), rest, GROUP)
    tl.store(tokens + row, tl.minimum(tl.min(members, 0) + place, vocabulary - 1).to(tl.int64))


@triton.jit
def _threshold(values, chosen, count, size, scale, shift, target, counted, CHUNK: tl.constexpr):
    """Return the largest t at which the number of x >= t, if `counted`, or their sum of e^(x - shift) reaches `target`.

    x: scale * value, of the first `count` of values [size], or of the members of the groups `chosen`.
    Minus infinity if all of them together don't reach it.
    """
    found = LOWEST
    digits = tl.arange(0, DIGITS)
    for bit in tl.range(32 - BITS, -1, -BITS):
        pivots = found + (digits << bit)
        above = tl.zeros([CHUNK, DIGITS], tl.float32)
        for start in tl.range(0, count, CHUNK):
            places = start + tl.arange(0, CHUNK)
            if chosen is not None:
                group = tl.load(chosen + places // GROUP, mask=places < count, other=size)
                places = group * GROUP + places % GROUP
            x = _scaled(values, places, size, scale)
            weight = tl.where(counted, 1.0, tl.exp(x - shift))
            bits = x.to(tl.int32, bitcast=True)
            ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # has the order of x
            above += tl.where(ordered[:, None] >= pivots[None, :], weight[:, None], 0.0)
        reached = (tl.sum(above, 0) >= target) & (digits > 0)
        found += tl.sum(reached.to(tl.int32), 0) << bit
    return (found ^ ((found >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weigh(logits, chosen, count, vocabulary, scale, shift, floor, masses, CHUNK: tl.constexpr):
    """Store the sum of e^(x - shift) over x >= floor of each of `count` groups `chosen`; return the total."""
    SIZE: tl.constexpr = CHUNK // GROUP
    totals = tl.zeros([SIZE], tl.float32)
    for start in tl.range(0, count, SIZE):
        entry = start + tl.arange(0, SIZE)
        group = tl.load(chosen + entry, mask=entry < count, other=vocabulary)
        x = _scaled(logits, group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], vocabulary, scale)
        mass = tl.sum(tl.where(x >= floor, tl.exp(x - shift), 0.0), 1)
        tl.store(masses + entry, mass, mask=entry < count)
        totals += mass
    return tl.sum(totals, 0)


@triton.jit
def _pick(weights, target, SIZE: tl.constexpr):
    """Return the index of the first weight with which the sum exceeds `target`, and `target` less the sum before it.

    Rounding may put the target beyond the total, or the sums out of order; a weight of 0 is never picked.
    """
    cumulative = tl.where(weights > 0, tl.cumsum(weights, 0), 0.0)
    below = (tl.max(cumulative, 0).to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    target = tl.minimum(target, below)
    places = tl.arange(0, SIZE)
    place = tl.min(tl.where(cumulative > target, places, SIZE), 0)
    before = tl.sum(tl.where(places == place, cumulative - weights, 0.0), 0)
    return place, target - before


@triton.jit
def _uniform(parameters):
    """Return a number in [0, 1): Philox4x32-10 (Salmon et al., SC '11) of key `seed` and counter (choice, index)."""
    seed, counter = parameters + 4, parameters + 6
    choice, zero = tl.load(counter), tl.load(counter) * 0
    word, _, _, _ = tl.philox_impl(choice, tl.load(counter + 1), zero, zero, tl.load(seed), tl.load(seed + 1))
    return (word >> 8).to(tl.float32) * (1.0 / (1 << 24))
