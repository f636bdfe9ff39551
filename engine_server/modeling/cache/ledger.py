"""The account of a device's memory: the bytes that each part of an engine takes, in the order of the start."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine_server.contract.cluster.memory_shortage import MemoryShortage
from engine_server.modeling.device.interface import Device

# How to make each part smaller, for the error message of one that does not fit.
ADVICE = {
    "weights": "Use a smaller model or dtype, or more GPUs by tensor_parallel_size",
    "encoder of pictures": "Set language_model_only, if no pictures are sent",
    "rows of pictures": "Lower max_model_len",
    "draft head": "Use a smaller draft head, or none",
    "adapters": "Lower max_loras or max_lora_rank",
    "step buffers": "Lower max_num_batched_tokens or max_num_seqs",
    "penalty tables": "Lower max_num_seqs or max_model_len",
    "largest step": "Lower max_num_batched_tokens or max_num_seqs",
    "largest picture": "Lower the size in mm_processor_kwargs, or set language_model_only, if no pictures are sent",
    "draft model": "Use a smaller draft model, or none",
    "draft buffers": "Lower max_num_batched_tokens or max_num_seqs",
    "captured steps": "Lower max_num_seqs, or set enforce_eager",
    "captured steps of drafts": "Lower max_num_seqs, or set enforce_eager",
    "states": "Lower num_state_slots or max_num_seqs",
    "KV cache": "Lower gpu_memory_utilization, or the setting of the cache's size",
    "KV cache of drafts": "Lower gpu_memory_utilization, or the setting of the cache's size",
}
# Parts that get what the others leave.
REST = ("KV cache", "KV cache of drafts")
# Parts that take their memory in turn: that of the largest serves all.
IN_TURN = ("largest step", "largest picture")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class MemoryLedger:
    """The memory that an engine takes of one device, by the parts in ADVICE. The KV cache gets the rest."""

    def __init__(self, platform: Device) -> None:
        self.platform = platform
        # Bytes of each part.
        self._taken: dict[str, int] = {}
        # Bytes that must stay free for each part: it takes them while it runs, or after the cache.
        self._reserved: dict[str, int] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each part, by its name in lower case with underscores."""
        return {part.lower().replace(" ", "_"): size for part, size in self._parts.items()}

    @property
    def measures(self) -> bool:
        """Return True if the device measures what `running` reserves."""
        return self.platform.transient_memory() is not None

    @contextmanager
    def taking(self, part: str) -> Iterator[list[Tensor]]:
        """Count the tensors that are added to the list as `part`, in place of an earlier count.

        Raises ValueError, with sizes and advice, if the memory runs out.
        """
        tensors: list[Tensor] = []
        with self._fitting(part):
            yield tensors
        self.record(part, storage_bytes(tensors))

    def record(self, part: str, size: int) -> None:
        """Count `size` bytes as `part`, which are no longer reserved."""
        self._taken[part] = size
        self._reserved.pop(part, None)

    @contextmanager
    def running(self, part: str) -> Iterator[None]:
        """Reserve for `part` the memory that is taken for a time only, at its peak; of several steps, the largest.

        Raises ValueError, with sizes and advice, if the memory runs out.
        """
        self.platform.reset_peak_memory()
        with self._fitting(part):
            yield
        self._reserved[part] = max(self._reserved.get(part, 0), self.platform.transient_memory() or 0)

    def keep_free(self, part: str, size: int) -> None:
        """Reserve `size` bytes for a part that is allocated while requests run."""
        self._reserved[part] = size

    def cache_memory(self, utilization: float, with_states: bool = False) -> int:
        """Return the bytes for the KV cache: what all other parts leave of a share of the memory.

        with_states: the states of recurrent layers take a part of them.
        """
        self.platform.release_cached_memory()
        return self.platform.cache_memory(utilization, self._reserved_at_once, with_states)

    def account(self) -> str:
        """Return a sentence for the end of an error: all parts, and the advice for the largest; empty without parts."""
        others = {part: size for part, size in self._parts.items() if size and part not in REST}
        if not others:
            return ""
        largest = max(others, key=others.__getitem__)
        return f". The memory is taken by {self}. The largest of these is {largest}. {ADVICE[largest]}"

    def __str__(self) -> str:
        return ", ".join(f"{part} {size >> 20} MiB" for part, size in self._parts.items() if size)

    @property
    def _parts(self) -> dict[str, int]:
        return self._taken | self._reserved

    @property
    def _reserved_at_once(self) -> int:
        in_turn = [self._reserved.get(part, 0) for part in IN_TURN]
        return sum(self._reserved.values()) - sum(in_turn) + max(in_turn)

    @contextmanager
    def _fitting(self, part: str) -> Iterator[None]:
        before = self.platform.free_memory()
        try:
            yield
        except torch.OutOfMemoryError as error:
            # The first three sentences: the failed allocation, the device's memory, and its free part.
            reason = ". ".join(str(error).split(". ")[:3])
            needed = before + max(0, failed_allocation(reason) - self.platform.free_memory())
            sizes = MemoryShortage(needed >> 20, before >> 20, self.platform.device.type)
            raise ValueError(f"{part}: at least {sizes}. {reason}. {ADVICE[part]}{self.account()}") from error
        self.platform.release_cached_memory()


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.is_mkldnn:  # oneDNN's own layout, without a storage
            sizes[id(tensor)] = tensor.nbytes
        else:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def failed_allocation(reason: str) -> int:
    """Return the size in bytes of the allocation that failed, by torch's message; 0 if that is not known."""
    found = re.search(r"Tried to allocate ([\d.]+) ([KMG]iB)", reason)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0
