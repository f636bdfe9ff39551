"""The memory of the tensors that a computation allocates, on any device."""

import weakref
from typing import Any, Self

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMeter(TorchDispatchMode):
    """Counts the bytes of the storages that torch's operations allocate within the context, and their peak.

    What an operation frees before it returns is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._taken = 0
        # Addresses of the storages that are known, those from before the context included.
        self._known: set[int] = set()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._take((args, kwargs), are_new=False)
        output = operation(*args, **(kwargs or {}))
        self._take(output, are_new=True)
        return output

    def _take(self, values: Any, are_new: bool) -> None:
        for value in tree_leaves(values):
            if not isinstance(value, Tensor) or value.is_mkldnn:
                continue
            storage = value.untyped_storage()
            if storage._cdata in self._known:
                continue
            size = storage.nbytes() if are_new else 0
            self._known.add(storage._cdata)
            weakref.finalize(storage, self._free, storage._cdata, size)
            self._taken += size
            self.peak = max(self.peak, self._taken)

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._taken -= size
