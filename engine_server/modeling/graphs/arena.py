"""The memory of a program's buffers, which is used again after a buffer's last use."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from engine_server.modeling.graphs.merging import Affine
from engine_server.modeling.graphs.recording import Place, Recording, View

# In bytes: a line of the CPU's caches.
ALIGNMENT = 64


class Arena:
    """One allocation with a place for each buffer of a recording.

    offsets: bytes, by the buffer's storage. last_uses: the storages that a call uses last, by the call's index.
    """

    def __init__(self, recording: Recording, most: int) -> None:
        """most: the largest number of rows."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, call in enumerate(recording.calls):
            for number in storages_in([call.arguments, getattr(call, "results", [])]):
                first.setdefault(number, index)
                last[number] = index
        self.last_uses: dict[int, list[int]] = defaultdict(list)
        for number, index in last.items():
            self.last_uses[index].append(number)
        self.offsets: dict[int, int] = {}
        size = 0
        # Begin and end of each place in use, and the index of the last call that uses it.
        used: list[tuple[int, int, int]] = []
        for number in sorted(first, key=first.__getitem__):
            if recording.storages[number].kind != "buffer":
                continue
            wanted = recording.storages[number].bytes
            wanted = wanted.at(most) if isinstance(wanted, Affine) else wanted
            used = sorted(place for place in used if place[2] >= first[number])
            start = 0
            for begin, end, _ in used:
                if begin - start >= wanted:
                    break
                start = max(start, -(-end // ALIGNMENT) * ALIGNMENT)
            self.offsets[number] = start
            used.append((start, start + wanted, last[number]))
            size = max(size, start + wanted)
        # Uninitialised, so that what no step was large enough to use takes no memory.
        whole = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        self._memory = whole[-whole.data_ptr() % ALIGNMENT :][: -(-size // ALIGNMENT) * ALIGNMENT]
        self._views: dict[torch.dtype, Tensor] = {}

    @property
    def address(self) -> int:
        return self._memory.data_ptr()

    @property
    def bytes(self) -> int:
        return len(self._memory)

    def typed(self, dtype: torch.dtype) -> Tensor:
        """Return the whole memory as one tensor."""
        if dtype not in self._views:
            self._views[dtype] = self._memory.view(dtype)
        return self._views[dtype]


def storages_in(tree: Any) -> set[int]:
    """Return the storages of places, views and results."""
    leaves = tree_flatten(tree, is_leaf=lambda node: isinstance(node, Place | View))[0]
    return {leaf.storage for leaf in leaves if isinstance(leaf, Place | View)}
