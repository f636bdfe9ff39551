"""Norms, rotary embeddings and the cache's write in one launch, against the kernels for each of them."""

from typing import NamedTuple

import pytest
import torch

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import FLOAT8
from engine_server.modeling.heads.pending import PendingHeads, PendingRotation
from engine_server.modeling.kernels.cache_write import write_cache
from engine_server.modeling.kernels.head_write import write_heads
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate

TOKENS, BLOCKS, BLOCK_SIZE = 7, 5, 16
# Differences of sums in another order, and of one rounding after them.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Case(NamedTuple):
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    pairs: int
    dtype: torch.dtype = torch.float32
    interleaved: bool = False
    float8: bool = False


CASES = {
    "Llama": Case(8, 2, 64, 64, 32),
    "bfloat16": Case(14, 2, 128, 128, 64, torch.bfloat16),
    "float16, neighbouring pairs": Case(4, 4, 64, 64, 32, torch.float16, interleaved=True),
    "rotation of a part": Case(5, 5, 80, 80, 10),
    "rotation of a part in neighbouring pairs": Case(3, 1, 96, 96, 24, interleaved=True),
    "smaller values": Case(6, 3, 48, 32, 24),
    "more heads than one program takes": Case(40, 40, 128, 128, 64),
    "float8 cache": Case(6, 2, 64, 64, 32, torch.bfloat16, float8=True),
    "float8 cache, rotation of a part": Case(6, 2, 80, 80, 20, float8=True),
}


class Norm(NamedTuple):
    weight: torch.Tensor
    eps: float
    offset: float

    def add(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rms_norm(x, self.weight, self.eps, self.offset)


def empty_pages(case: Case, device: torch.device) -> list[Pages]:
    """Return pages of K and V whose content no test writes."""
    pages = []
    for dim in (case.dim, case.value_dim):
        data = torch.full((BLOCKS, BLOCK_SIZE, case.kv_heads, dim), 7.0, device=device)
        scales = torch.full((*data.shape[:3], 1), 7.0, device=device) if case.float8 else None
        pages.append(Pages(data.to(FLOAT8 if case.float8 else case.dtype), scales))
    return pages


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_heads_are_written_as_by_kernels_for_norm_rotation_and_write(
    device: torch.device, case: Case, normed: bool
) -> None:
    torch.manual_seed(0)
    # The layout of one product of queries, keys and values.
    sizes = [case.heads * case.dim, case.kv_heads * case.dim, case.kv_heads * case.value_dim]
    joined = torch.randn(TOKENS, sum(sizes), device=device).to(case.dtype)
    heads = (case.heads, case.kv_heads, case.kv_heads)
    query, key, value = (
        part.unflatten(1, (count, -1)) for part, count in zip(joined.split(sizes, 1), heads, strict=True)
    )
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, device=device)[:TOKENS].int()
    slots[2] = -1  # a padding token
    angles = 6 * torch.rand(TOKENS, 2 * case.pairs, device=device)
    cos, sin = (part[:, : case.pairs] for part in (angles.cos().to(case.dtype), angles.sin().to(case.dtype)))
    rotation = PendingRotation(rotate, cos, sin, case.interleaved)
    weights = torch.rand(2, case.dim, device=device).to(case.dtype) + 0.5
    norms = (Norm(weights[0], 1e-2, 0.0), Norm(weights[1], 1e-3, 1.0)) if normed else (None, None)

    expected_pages = empty_pages(case, device)
    expected, rotated_key = PendingHeads(*norms, rotation).apply(query, key)
    write_cache(*expected_pages, rotated_key, value, slots)
    pages = empty_pages(case, device)
    turned = write_heads(*pages, query, key, value, slots, rotation, *norms)

    close = {"rtol": TOLERANCE[case.dtype], "atol": TOLERANCE[case.dtype]}
    torch.testing.assert_close(turned, expected, **close)
    for own, other in zip(pages, expected_pages, strict=True):
        for part, wanted in zip(own, other, strict=True):
            if part is not None:
                steps = {"rtol": 0.13, "atol": 2.0} if case.float8 else close
                torch.testing.assert_close(part.float(), wanted.float(), **steps)
