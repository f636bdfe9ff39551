"""The memory that watched objects may take, so that no namespace takes another's."""

from collections import Counter
from dataclasses import dataclass, field

from llm_operator import metrics

# Bytes of the objects that are kept, of one namespace and of all.
NAMESPACE_BYTES = 16 << 20
TOTAL_BYTES = 160 << 20


@dataclass(slots=True)
class Room:
    """Counts the objects that are kept, and those for which there was no room."""

    kept: Counter[str] = field(default_factory=Counter)
    total: int = 0
    # The number of objects, by namespace.
    left_out: Counter[str] = field(default_factory=Counter)

    def has(self, namespace: str, num_bytes: int) -> bool:
        """Return True if so many more bytes of a namespace may be kept."""
        return self.kept[namespace] + num_bytes <= NAMESPACE_BYTES and self.total + num_bytes <= TOTAL_BYTES

    def keep(self, namespace: str, num_bytes: int) -> None:
        """Count an object that is kept; a negative number takes one away."""
        self.kept[namespace] += num_bytes
        self.total += num_bytes
        if not self.kept[namespace]:
            del self.kept[namespace]

    def leave_out(self, namespace: str, count: int) -> None:
        """Count an object that is not kept, by 1; by -1 one that is gone, or kept now."""
        self.left_out[namespace] += count
        if self.left_out[namespace]:
            metrics.NOT_KEPT.labels(namespace).set(self.left_out[namespace])
        else:
            del self.left_out[namespace]
            metrics.NOT_KEPT.remove(namespace)
