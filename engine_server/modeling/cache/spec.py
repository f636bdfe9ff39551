"""Specs of caches: what a layer keeps of earlier tokens, in which units of a pool, and how long it needs each."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from engine_server.modeling.cache.quantised import LARGEST
from engine_server.modeling.heads.window import Positions, Window

# More units, or tokens, than any request has.
UNLIMITED = sys.maxsize


class CacheSpec(ABC):
    """How layers of one kind keep earlier tokens: the rules by which rows take, release and share units of a pool.

    A row of the block table has a column for each block of tokens, and a column has at most one unit. A unit's content
    is known by the tokens up to the end of its column, so that other rows with the same tokens can use it. Equal specs
    are one kind.
    """

    # What a unit holds. Kinds that have equal layers and hold the same share a pool.
    unit: ClassVar[str]
    # Every token needs the units of all tokens before it.
    keeps_all: ClassVar[bool] = False
    # A unit is a state that each step replaces: a row without a free unit goes on in its own, and of those that it
    # leaves behind the latest one is kept, besides those that are asked for.
    is_state: ClassVar[bool] = False

    @abstractmethod
    def unit_bytes(self, shape: "LayerShape", block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of a unit in a tensor for layers of this shape, whose elements have this dtype."""

    @abstractmethod
    def limited_to(self, longest: int) -> "CacheSpec":
        """Return the simplest spec that does the same for requests of at most `longest` tokens."""

    @abstractmethod
    def first_needed(self, position: Positions) -> Positions | int:
        """Return the first token whose unit the token at a position needs, with all units from there to the position.

        It never decreases, and may be negative: then the first token is meant.
        """

    @abstractmethod
    def passed_at(self, position: int) -> int:
        """Return the first position whose token needs no unit of the tokens before `position`."""

    @abstractmethod
    def new_columns(self, end: int, num_tokens: int, total: int, block_size: int) -> range:
        """Return the columns from `end` on that get a unit for a step that computes a row up to `num_tokens`.

        total: the row's known tokens. All may get their units at once, so that a prompt that has begun can be finished.
        """

    @abstractmethod
    def readable(self, computed: int, num_tokens: int) -> int:
        """Return up to which token other rows may read a row's units in a step from `computed` to `num_tokens`.

        The row's units of the columns that end there or earlier are complete.
        """

    @abstractmethod
    def most_units(self, rows: int, num_tokens: int, block_size: int) -> int:
        """Return the most units that `rows` rows need at once when a step computes `num_tokens` tokens of them.

        Return UNLIMITED if it grows with the rows' lengths.
        """


class BlockSpec(CacheSpec):
    """A spec whose units are blocks: K and V of the tokens of one column."""

    unit = "K and V"

    def unit_bytes(self, shape: "LayerShape", block_size: int, dtype: torch.dtype) -> int:
        scales = 2 * torch.float32.itemsize if dtype in LARGEST else 0
        dims = shape.key_dim + shape.value_dim
        return block_size * shape.kv_heads * (dims * dtype.itemsize + scales)

    def readable(self, computed: int, num_tokens: int) -> int:
        return num_tokens  # each layer writes a step's K and V before it reads any


@dataclass(frozen=True)
class FullSpec(BlockSpec):
    """Blocks of the whole context."""

    keeps_all = True

    def __str__(self) -> str:
        return "no window"

    def limited_to(self, longest: int) -> CacheSpec:
        return self

    def first_needed(self, position: Positions) -> Positions | int:
        return 0

    def passed_at(self, position: int) -> int:
        return UNLIMITED

    def new_columns(self, end: int, num_tokens: int, total: int, block_size: int) -> range:
        return range(end, -(-total // block_size))

    def most_units(self, rows: int, num_tokens: int, block_size: int) -> int:
        return UNLIMITED


FULL = FullSpec()


@dataclass(frozen=True)
class LocalSpec(BlockSpec):
    """Blocks of at most the last `size` tokens."""

    size: int

    def limited_to(self, longest: int) -> CacheSpec:
        return FULL if self.size >= longest else self

    def new_columns(self, end: int, num_tokens: int, total: int, block_size: int) -> range:
        return range(end, -(-num_tokens // block_size))

    def most_units(self, rows: int, num_tokens: int, block_size: int) -> int:
        # What one token sees may begin and end within a block.
        return rows * (-(-self.size // block_size) + 2) - (-num_tokens // block_size)


@dataclass(frozen=True)
class WindowSpec(LocalSpec):
    """Blocks of the last `size` tokens, the token itself included."""

    def __str__(self) -> str:
        return str(Window(self.size))

    def first_needed(self, position: Positions) -> Positions | int:
        return position + 1 - self.size

    def passed_at(self, position: int) -> int:
        return position + self.size - 1


@dataclass(frozen=True)
class ChunkSpec(LocalSpec):
    """Blocks of the tokens since the last multiple of `size`."""

    def __str__(self) -> str:
        return str(Window(self.size, chunked=True))

    def first_needed(self, position: Positions) -> Positions | int:
        return position - position % self.size

    def passed_at(self, position: int) -> int:
        return -(-position // self.size) * self.size


@dataclass(frozen=True)
class StateSpec(CacheSpec):
    """One state for each row: what recurrent layers keep of all tokens before a point.

    It is in the column of the last of these tokens. One that a row leaves behind at the end of a column is complete.
    """

    # Of all recurrent layers.
    bytes: int

    unit = "state"
    is_state = True

    def unit_bytes(self, shape: "LayerShape", block_size: int, dtype: torch.dtype) -> int:
        return self.bytes

    def limited_to(self, longest: int) -> CacheSpec:
        return self

    def first_needed(self, position: Positions) -> Positions | int:
        return position - 1

    def passed_at(self, position: int) -> int:
        return position + 1

    def new_columns(self, end: int, num_tokens: int, total: int, block_size: int) -> range:
        return range(max(end, (num_tokens - 1) // block_size), -(-num_tokens // block_size))

    def readable(self, computed: int, num_tokens: int) -> int:
        return computed  # a layer reads all rows' states before it writes any

    def most_units(self, rows: int, num_tokens: int, block_size: int) -> int:
        return 2 * rows  # a step reads one and writes another


class LayerShape(NamedTuple):
    """Shape of what one attention layer keeps of each token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    spec: CacheSpec = FULL
    # The earlier layer whose K and V this one reads; None: it has its own.
    source: int | None = None


def spec_of(window: Window | None) -> CacheSpec:
    """Return the spec of a layer of which only the tokens of the window are visible, or of one that sees all."""
    if window is None:
        return FULL
    return ChunkSpec(window.size) if window.chunked else WindowSpec(window.size)


def whole_kind(specs: Sequence[CacheSpec]) -> int | None:
    """Return the kind that keeps the whole context, if there is one."""
    return next((kind for kind, spec in enumerate(specs) if spec.keeps_all), None)
