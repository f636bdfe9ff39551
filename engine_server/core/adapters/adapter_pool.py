"""The adapters in memory and in the device's slots, each replaced by the least recently used one."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path

from engine_server.config import LoRAConfig
from engine_server.core.adapters.adapter import Adapter
from engine_server.modeling.adapters.peft_folder import AdapterError, LowRankAdapter
from engine_server.requests.adapters import LoRARequest

by_last_use = attrgetter("last_use")


class AdapterPool:
    """The adapters of a core. They are read in a thread, so that steps go on, and copied to a slot before a step.

    An adapter stays in memory while a request that has started needs it, and in its slot while one runs, so that a
    request has one content from its first step to its last.

    read: returns the content of a folder, or raises AdapterError. put: copies a content to a slot.
    """

    def __init__(
        self,
        config: LoRAConfig,
        read: Callable[[Path], LowRankAdapter],
        put: Callable[[int, LowRankAdapter], None],
    ) -> None:
        self._config = config
        self._read = read
        self._put = put
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._adapters: dict[int, Adapter] = {}
        self._slots: list[Adapter | None] = [None] * config.max_loras
        self._uses = itertools.count(1)

    @property
    def ids(self) -> list[int]:
        """The adapters in memory."""
        return [key for key, adapter in self._adapters.items() if adapter.content is not None]

    # Requests

    def open(self, lora: LoRARequest) -> Adapter:
        """Return the adapter of a new request, which may not be in memory yet."""
        adapter = self._find(lora)
        adapter.num_requests += 1
        return adapter

    def read_next(self, adapters: Iterable[Adapter]) -> None:
        """Start to read adapters for which memory has room. adapters: those of the waiting requests, in their order.

        One that an earlier request waits for is not replaced by that of a later one.
        """
        earlier: set[Adapter] = set()
        for adapter in adapters:
            if adapter.reading is None and not self._start(adapter, earlier):
                return
            earlier.add(adapter)

    def can_run(self, adapter: Adapter) -> bool:
        """Return True if the adapter is in memory, and has a slot or can get one."""
        return adapter.content is not None and (adapter.slot is not None or self._free_slot() is not None)

    def enter(self, adapter: Adapter, first: bool) -> None:
        """Count a request that runs from now on, and give its adapter a slot; `first`: it has not run before."""
        adapter.num_running += 1
        adapter.num_started += first
        adapter.last_use = next(self._uses)
        if adapter.slot is None:
            slot, content = self._free_slot(), adapter.content
            assert slot is not None and content is not None
            self._vacate(slot)
            self._put(slot, content)
            self._slots[slot], adapter.slot = adapter, slot

    def leave(self, adapter: Adapter) -> None:
        """Count a request that stops running."""
        adapter.num_running -= 1

    def close(self, adapter: Adapter, started: bool) -> None:
        """Forget a request that has ended."""
        adapter.num_requests -= 1
        adapter.num_started -= started
        if not adapter.num_requests and (adapter.removed or adapter.content is None):
            self._forget(adapter)

    # Operations

    def add(self, lora: LoRARequest) -> Adapter:
        """Start to read an adapter that no request needs yet. `keep` must be called once that is done."""
        adapter = self._find(lora)
        adapter.last_use = next(self._uses)
        if adapter.reading is None and not self._start(adapter, set()):
            adapter.reading = self._thread.submit(self._read_again, adapter)  # to find errors
        return adapter

    def keep(self, adapter: Adapter) -> None:
        """Keep an adapter that was read for `add`, unless it can't be used or memory has no room."""
        unused = not (adapter.num_requests or adapter.pinned)
        if unused and (adapter.content is None or len(self._held()) > self._config.max_cpu_loras):
            self._evict(adapter)

    def remove(self, lora_int_id: int) -> bool:
        """Remove an adapter; requests that have it go on. Return False if it isn't in memory."""
        adapter = self._adapters.get(lora_int_id)
        if adapter is None or adapter.content is None:
            return False
        adapter.removed, adapter.pinned = True, False
        del self._adapters[lora_int_id]
        if not adapter.num_requests:
            self._forget(adapter)
        return True

    def pin(self, lora_int_id: int) -> None:
        """Keep an adapter in memory and, once it has run, in its slot. Raises AdapterError if that can't be."""
        adapter = self._adapters.get(lora_int_id)
        if adapter is None or adapter.content is None:
            raise AdapterError(f"there is no adapter {lora_int_id} in memory; add_lora loads it")
        pinned = sum(one.pinned for one in self._adapters.values() if one is not adapter)
        if pinned + 1 >= self._config.max_loras:
            raise AdapterError(
                f"max_loras is {self._config.max_loras} and {pinned} adapters are pinned; one slot stays for the others"
            )
        adapter.pinned = True

    def vacate_all(self) -> None:
        """Take every adapter out of its slot, whose content is lost. No request runs."""
        for slot in range(len(self._slots)):
            self._vacate(slot)

    def _find(self, lora: LoRARequest) -> Adapter:
        known = self._adapters.get(lora.lora_int_id)
        if known is not None and known.error is None and known.lora.lora_path != lora.lora_path:
            return unusable(
                lora,
                f"lora_int_id {lora.lora_int_id} is the adapter in {known.lora.lora_path}; another needs another id",
            )
        if known is None or known.error is not None:
            known = self._adapters[lora.lora_int_id] = Adapter(lora)
        return known

    def _start(self, adapter: Adapter, kept: set[Adapter]) -> bool:
        """Start to read an adapter; return False if memory has no room, even without those that nobody needs."""
        if len(self._held()) >= self._config.max_cpu_loras:
            idle = [
                one
                for one in self._held()
                if one.settled and not one.num_started and not one.pinned and one not in kept
            ]
            if not idle:
                return False
            self._evict(min(idle, key=by_last_use))
        adapter.reading = self._thread.submit(self._read_again, adapter)
        return True

    def _held(self) -> list[Adapter]:
        """Return the adapters that are in memory or being read."""
        return [one for one in self._adapters.values() if one.reading is not None and one.error is None]

    def _read_again(self, adapter: Adapter) -> LowRankAdapter:
        content = self._read(Path(adapter.lora.lora_path))
        if adapter.digest not in (None, content.digest):
            raise AdapterError(
                f"the files in {adapter.lora.lora_path} have changed; another content needs another lora_int_id"
            )
        adapter.digest = content.digest
        return content

    def _free_slot(self) -> int | None:
        """Return a slot that is empty, or whose adapter is the least recently used one without a running request."""
        owners = [
            (owner.last_use if owner else 0, slot)
            for slot, owner in enumerate(self._slots)
            if owner is None or not (owner.num_running or owner.pinned)
        ]
        return min(owners)[1] if owners else None

    def _evict(self, adapter: Adapter) -> None:
        adapter.reading = None
        if adapter.slot is not None:
            self._vacate(adapter.slot)
        if not adapter.num_requests:
            self._forget(adapter)

    def _vacate(self, slot: int) -> None:
        owner = self._slots[slot]
        if owner is not None:
            owner.slot = self._slots[slot] = None

    def _forget(self, adapter: Adapter) -> None:
        if self._adapters.get(adapter.lora.lora_int_id) is adapter:
            del self._adapters[adapter.lora.lora_int_id]
        if adapter.slot is not None:
            self._vacate(adapter.slot)


def unusable(lora: LoRARequest, reason: str) -> Adapter:
    """Return an adapter that can't be loaded."""
    reading: Future[LowRankAdapter] = Future()
    reading.set_exception(AdapterError(reason))
    return Adapter(lora, reading)
