"""Attention over a cache of pages: the one place that knows which layers write it."""

from abc import abstractmethod

from torch import Tensor

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring


class PagedAttention(AttentionBackend):
    """Attention over K and V in a cache. A layer that reads what another has written writes nothing."""

    def attend(self, layer: int | None, heads: Heads, scoring: Scoring) -> Tensor:
        assert layer is not None
        if layer not in self.layout.readers:
            return self.read(layer, self.write(layer, heads), scoring)
        return self.read(layer, heads.pending.apply_to_query(heads.query), scoring)

    def write(self, layer: int, heads: Heads) -> Tensor:
        """Write a layer's K and V to its cache; return its query, [T, query heads, dim], with what was pending."""
        query, key = heads.pending.apply(heads.query, heads.key)
        self.store(layer, key, heads.value)
        return query

    @abstractmethod
    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write K, [T, kv heads, dim], and V, [T, kv heads, value dim], to a layer's cache."""

    @abstractmethod
    def read(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """Attend over a layer's cache, which has this step's K and V: [T, query heads, value dim]."""
