"""The tiles of a mixture of experts, built on the device: the rows that each program of a grouped product multiplies.

A token's choices of experts are sorted by expert, and each expert's choices are cut into tiles of one size. The host
knows how many tiles there are at most, not how many are needed, so a CUDA graph captured for a number of tokens
computes any choices of as many (as the block-sparse products of MegaBlocks do, Gale et al. 2022, arXiv 2211.15841).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Choices that a program reads at a time, of a few and of many, and tiles that it writes at a time.
FEW, MANY, TILES = 1024, 4096, 16


class ExpertTiles(NamedTuple):
    """The choices of one step's tokens, numbered token by token, in the order of their experts."""

    # int32 [choices]: the number of each choice; those of an expert are ascending.
    order: Tensor
    # int32 [tiles, 3]: expert, first index in `order`, and their end. The expert is -1 for a tile that isn't needed.
    tiles: Tensor


def most_tiles(choices: int, experts: int, rows: int) -> int:
    """Return the largest number of tiles of `rows` rows that `choices` choices of `experts` experts can need."""
    return (choices + (rows - 1) * min(choices, experts)) // rows


def plan_tiles(top_k_index: Tensor, num_experts: int, rows: int) -> ExpertTiles:
    """Return the tiles of at most `rows` choices each, in one launch.

    top_k_index: int64 [tokens, chosen], contiguous, below `num_experts`.
    """
    choices = top_k_index.numel()
    order = top_k_index.new_empty(choices, dtype=torch.int32)
    tiles = top_k_index.new_empty((most_tiles(choices, num_experts, rows), 3), dtype=torch.int32)
    block, warps = (FEW, 4) if choices <= FEW else (MANY, 8)
    _plan[(num_experts + 1,)](
        order, tiles, top_k_index, choices, len(tiles), EXPERTS=num_experts, ROWS=rows,
        WIDTH=max(32, triton.next_power_of_2(num_experts)), BLOCK=block, TILES=TILES, num_warps=warps,
    )  # fmt: skip
    return ExpertTiles(order, tiles)


@triton.jit(do_not_specialize=["num_choices", "num_tiles"])
def _plan(
    order, tiles, top_k_index, num_choices, num_tiles,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write one expert's choices and tiles. The program after the last expert's writes the tiles that nobody needs."""
    expert, block = tl.program_id(0), tl.arange(0, BLOCK)
    experts = tl.arange(0, WIDTH)
    counts = tl.zeros([WIDTH], tl.int32)
    for start in range(0, num_choices, BLOCK):
        kept = start + block < num_choices
        chosen = tl.load(top_k_index + start + block, mask=kept, other=0).to(tl.int32)
        counts += tl.histogram(chosen, WIDTH, mask=kept)
    needed = (counts + ROWS - 1) // ROWS
    first_tile = tl.sum(tl.where(experts < expert, needed, 0), 0)
    first = tl.sum(tl.where(experts < expert, counts, 0), 0)
    end = first + tl.sum(tl.where(experts == expert, counts, 0), 0)
    last_tile = first_tile + (end - first + ROWS - 1) // ROWS
    number = expert
    if expert == EXPERTS:
        last_tile = num_tiles
        number = -1
    for tile in range(first_tile, last_tile, TILES):
        own = tile + tl.arange(0, TILES)
        begin = first + (own - first_tile) * ROWS
        tl.store(tiles + own * 3, number, mask=own < last_tile)
        tl.store(tiles + own * 3 + 1, begin, mask=own < last_tile)
        tl.store(tiles + own * 3 + 2, tl.minimum(begin + ROWS, end), mask=own < last_tile)
    place = first
    for start in range(0, num_choices, BLOCK):
        kept = start + block < num_choices
        chosen = tl.load(top_k_index + start + block, mask=kept, other=-1).to(tl.int32)
        mine = (chosen == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, 0) - 1, start + block, mask=mine > 0)
        place += tl.sum(mine, 0)
