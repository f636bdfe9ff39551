"""Rotary embeddings whose cosines and sines depend on the position alone, gathered from tables."""

from inspect import signature
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.layers.rope import is_stretched

# Bytes of the tables for one kind of layer, above which a rope is computed in each step: those of 131,072 positions of
# 256 numbers of two bytes. This is about 1 / (layers * KV heads) of the KV cache of a sequence of that length.
MOST_BYTES = 1 << 27
# Positions for which a table is computed at a time.
CHUNK = 4096
# How the names of transformers' classes of cosines and sines end.
ROPE = "RotaryEmbedding"


class RopeTable(nn.Module):
    """A rotary embedding that gathers from tables, with the bits of transformers' module, on any device.

    A gather is one native operation of a decode program, or one kernel of a graph, instead of a product, two
    functions, two scalings and two casts. Every step gathers, so that programs, eager steps and prompts have the same
    bits.
    """

    def __init__(
        self, rope: nn.Module, dtype: torch.dtype, tables: dict[str | None, tuple[Tensor, Tensor]]
    ) -> None:
        """rope: transformers' module; dtype: of hidden states; tables: [positions, dim] by layer type, or None."""
        super().__init__()
        self.rope = rope
        self.dtype = dtype
        for kind, (cos, sin) in tables.items():
            self.register_buffer(f"cos_{kind}", cos, persistent=False)
            self.register_buffer(f"sin_{kind}", sin, persistent=False)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of transformers' module, which some models read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("rope"), name)

    @classmethod
    @torch.inference_mode()
    def of(cls, rope: Any, length: int, x: Tensor) -> Self | None:
        """Return the tables of positions below `length`, or None for a rope that depends on more, or is too large.

        x: of the dtype and on the device of the hidden states.
        """
        by_type = isinstance(rope.rope_type, dict)
        if [*signature(rope.forward).parameters] != ["x", "position_ids", *["layer_type"] * by_type]:
            return None
        layers: list[str | None] = [*rope.rope_type] if by_type else [None]
        if any(is_stretched(rope, layer) for layer in layers):
            return None
        tables = {layer: tabulate(rope, length, x, [layer] * by_type) for layer in layers}
        found = {kind: table for kind, table in tables.items() if table is not None}
        return cls(rope, x.dtype, found) if found.keys() == tables.keys() else None

    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines: [1, T, dim]. x: only its dtype and device matter."""
        cos, sin = self.get_buffer(f"cos_{layer_type}"), self.get_buffer(f"sin_{layer_type}")
        if position_ids.dim() != 2 or x.dtype != self.dtype:
            kinds = [] if layer_type is None else [layer_type]
            rotations: tuple[Tensor, Tensor] = self.rope(x, position_ids, *kinds)
            return rotations
        return F.embedding(position_ids, cos), F.embedding(position_ids, sin)


def tabulate(rope: Any, length: int, x: Tensor, kinds: list[str | None]) -> tuple[Tensor, Tensor] | None:
    """Return cosines and sines [length, dim]; None if they are too large or depend on more than the position."""
    positions = torch.arange(length, device=x.device).unsqueeze(0)
    last = positions[:, -CHUNK:]
    try:
        sample = rope(x, last.flip(1), *kinds)
    except IndexError:  # it takes positions of several axes
        return None
    if not isinstance(sample, tuple) or [part.dim() for part in sample] != [3, 3]:
        return None
    if sum(part.shape[-1] * part.itemsize for part in sample) * length > MOST_BYTES:
        return None
    chunks = [rope(x, part, *kinds) for part in torch.split(positions, CHUNK, 1)]
    cos, sin = (torch.cat(parts, 1)[0] for parts in zip(*chunks, strict=True))
    if any(
        not torch.equal(part[0].flip(0), table[-CHUNK:])
        for part, table in zip(sample, (cos, sin), strict=True)
    ):
        return None
    return cos, sin
