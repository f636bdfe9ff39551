"""What a layer gives to attention: its heads, with the norms and the rotation that the model left to the backend.

A backend computes them before attention, or in the same kernel that writes K and V to the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class PendingNorm(Protocol):
    """RMSNorm of heads: see kernels/norm.py."""

    # [dim]
    weight: Tensor
    eps: float
    # Added to the weight.
    offset: float

    def add(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [..., dim] and its norm."""


class PendingRotation(NamedTuple):
    """A rotation with the angles of a step's T tokens."""

    # Takes query, key [T, heads, dim], cos, sin and interleaved; returns the rotated query and key.
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    # [T, pairs], each angle once.
    cos: Tensor
    sin: Tensor
    # Pairs are neighbouring dims.
    interleaved: bool


@dataclass(slots=True, frozen=True)
class PendingHeads:
    """What one layer's attention still has to compute: norms of queries and keys first, then the rotation."""

    query_norm: PendingNorm | None = None
    key_norm: PendingNorm | None = None
    rotation: PendingRotation | None = None

    def apply(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed and rotated query and key, [T, heads, dim] each."""
        query = query if self.query_norm is None else self.query_norm.add(query)[1]
        key = key if self.key_norm is None else self.key_norm.add(key)[1]
        if self.rotation is None:
            return query, key
        return self.rotation.rotate(query, key, *self.rotation[1:])

    def apply_to_query(self, query: Tensor) -> Tensor:
        """Return the normed and rotated query, [T, heads, dim]."""
        query = query if self.query_norm is None else self.query_norm.add(query)[1]
        return query if self.rotation is None else self.rotation.rotate(query, query, *self.rotation[1:])[0]


NOTHING_PENDING = PendingHeads()


class Heads(NamedTuple):
    """One layer's heads of a step's T tokens."""

    # [T, query heads, dim]
    query: Tensor
    # [T, kv heads, dim]
    key: Tensor
    # [T, kv heads, value dim]
    value: Tensor
    pending: PendingHeads = NOTHING_PENDING
