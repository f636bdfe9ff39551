"""Steps of a layer's attention by a paged backend, and the same by an explicit softmax in float32."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.paged_attention import PagedAttention
from engine_server.modeling.cache.layout import Layout, lay_out
from engine_server.modeling.cache.spec import LayerShape, spec_of
from engine_server.modeling.graphs.staging import Staging
from engine_server.modeling.heads.pending import Heads, PendingHeads, PendingNorm, PendingRotation
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window
from engine_server.modeling.platform.cpu import CpuPlatform

QUERIES, KV_HEADS, DIM, BLOCK_SIZE, LONGEST = 4, 2, 16, 16, 64
WINDOWS = {"full": None, "window": Window(9), "chunk": Window(12, chunked=True)}
PENDING = ("plain", "norms", "rotation", "both")


class Part(NamedTuple):
    """A sequence's part of a step."""

    row: int
    # Tokens in the step.
    length: int
    # Tokens in the cache with them.
    context: int


STEPS = {
    "prompt": [Part(0, 21, 21), Part(1, 5, 5)],
    "decode": [Part(0, 1, 30), Part(1, 1, 7)],
    "mixed": [Part(0, 1, 30), Part(1, 18, 18), Part(2, 6, 25)],
}
# Makes a backend for a layout, with a number of blocks.
Make = Callable[[Layout, int, CpuPlatform], PagedAttention]


class Norm(NamedTuple):
    """RMSNorm in plain torch."""

    weight: Tensor
    eps: float = 1e-5
    offset: float = 0.0

    def add(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (self.weight + self.offset)


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Rotate dims i and pairs + i of heads [T, heads, dim] by angles [T, pairs]."""
    assert not interleaved

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), -1)

    return turned(query), turned(key)


class LayerSteps:
    """Sequences that a backend computes in two steps: what the cache has before, and the step that is looked at."""

    def __init__(self, make: Make, window: Window | None, shared: bool, pending: str) -> None:
        """shared: the layer reads the K and V that an earlier layer, which has nothing pending, has written."""
        torch.manual_seed(0)
        own = LayerShape(KV_HEADS, DIM, DIM, spec_of(window))
        layout = lay_out([own, own._replace(source=0)] if shared else [own], LONGEST)
        platform, blocks = CpuPlatform(), 3 * LONGEST // BLOCK_SIZE
        self._backend = make(layout, blocks, platform)
        self._layer, self._scoring, self._kind = len(layout.kinds) - 1, Scoring(DIM**-0.5, window), pending
        self._table = np.arange(blocks, dtype=np.int32)[::-1].reshape(1, 3, -1).copy()
        self._staging = Staging(3 * LONGEST, 3, self._table.shape, platform)
        cells = np.stack(np.unravel_index(np.arange(blocks), self._table.shape))
        self._changes = np.concatenate([cells, self._table.reshape(1, -1)]).astype(np.int32)
        self._heads = [torch.randn(3, LONGEST, count, DIM) for count in (QUERIES, KV_HEADS, KV_HEADS)]
        angles = torch.rand(LONGEST, DIM // 2) * 6
        self._angles = angles.cos(), angles.sin()
        self._weights = torch.rand(2, DIM) + 0.5

    def run(self, parts: list[Part]) -> Tensor:
        """Return the layer's output [T, queries, dim] of a step."""
        step = StepInputs.of(*zip(*parts, strict=True), kinds=1)
        step.place(self._table, BLOCK_SIZE)
        staged = self._staging.put(step, np.arange(len(parts)), changes=self._changes)
        self._backend.begin(self._staging.attach(step, staged))
        query, key, value = (of_all[step.rows.repeat(step.lengths), step.positions] for of_all in self._heads)
        positions = torch.from_numpy(step.positions)
        if not self._layer:
            heads = Heads(query, key, value, self._pending(positions))
            return self._backend.attend(0, heads, self._scoring)
        self._backend.attend(0, Heads(query, key, value), self._scoring)
        # What it is given for K and V must reach no cache.
        heads = Heads(query, torch.full_like(key, 7), torch.full_like(value, 7), self._pending(positions))
        return self._backend.attend(1, heads, self._scoring)

    def expected(self, part: Part) -> Tensor:
        """Return the output of a sequence's tokens, by an explicit softmax."""
        context = part.context
        query, key, value = (of_all[part.row, :context] for of_all in self._heads)
        turned = self._pending(torch.arange(context)).apply(query, key)
        query, key = (turned[0], key) if self._layer else turned
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(QUERIES // KV_HEADS, 1))
        ends, starts = torch.arange(context)[:, None], torch.arange(context)
        visible = starts <= ends
        if (window := self._scoring.window) is not None:
            first = ends // window.size * window.size if window.chunked else ends - window.size + 1
            visible = visible & (starts >= first)
        shares = (scores * self._scoring.scaling).masked_fill(~visible, -torch.inf).softmax(-1)
        output = torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(QUERIES // KV_HEADS, 1))
        return output[context - part.length :]

    def _pending(self, positions: Tensor) -> PendingHeads:
        parts: dict[str, Any] = {}
        if self._kind in ("norms", "both"):
            norms: list[PendingNorm] = [Norm(weight) for weight in self._weights]
            parts |= {"query_norm": norms[0], "key_norm": norms[1]}
        if self._kind in ("rotation", "both"):
            parts["rotation"] = PendingRotation(rotate, *(one[positions] for one in self._angles), False)
        return PendingHeads(**parts)


def check(make: Make, kind: str, pending: str, step: str) -> None:
    """Compare a step by a backend with the expected one. kind: a name in WINDOWS, or "shared"."""
    layer = LayerSteps(make, WINDOWS.get(kind), kind == "shared", pending)
    before = [Part(one.row, one.context - one.length, one.context - one.length) for one in STEPS[step]]
    if cached := [one for one in before if one.length]:
        layer.run(cached)
    outputs = layer.run(STEPS[step]).split([one.length for one in STEPS[step]])
    for output, part in zip(outputs, STEPS[step], strict=True):
        torch.testing.assert_close(output, layer.expected(part), rtol=2e-4, atol=2e-5)
