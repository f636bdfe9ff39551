"""The adapters in memory and in the device's slots, each replaced by the least recently used one."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from typing import Generic

from engine_server.core.adapters.adapter import Adapter, C, R
from engine_server.modeling.adapters.peft_folder import AdapterError

by_last_use = attrgetter("last_use")


class AdapterPool(Generic[R, C]):
    """The adapters of one kind. They are read in a thread, so that steps go on, and copied to a slot before a step.

    An adapter stays in memory while a request that has started needs it, and in its slot while one runs, so that a
    request has one content from its first step to its last.

    num_slots: different adapters in a step. capacity: adapters in the host's memory.
    read: returns an adapter's content, or raises AdapterError. put: copies a content to a slot.
    """

    def __init__(
        self, num_slots: int, capacity: int, read: Callable[[R], C], put: Callable[[int, C], None]
    ) -> None:
        self._capacity = capacity
        self._read: Callable[[R], C] = read
        self._put: Callable[[int, C], None] = put
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._adapters: dict[int, Adapter[R, C]] = {}
        self._slots: list[Adapter[R, C] | None] = [None] * num_slots
        self._uses = itertools.count(1)

    @property
    def ids(self) -> list[int]:
        """The adapters in memory."""
        return [key for key, adapter in self._adapters.items() if adapter.content is not None]

    # Requests

    def open(self, named: R) -> Adapter[R, C]:
        """Return the adapter of a new request, which may not be in memory yet."""
        adapter = self._find(named)
        adapter.num_requests += 1
        return adapter

    def read_next(self, adapters: Iterable[Adapter[R, C]]) -> None:
        """Start to read adapters for which memory has room. adapters: those of the waiting requests, in their order.

        One that an earlier request waits for is not replaced by that of a later one.
        """
        earlier: set[Adapter[R, C]] = set()
        for adapter in adapters:
            if adapter.reading is None and not self._start(adapter, earlier):
                return
            earlier.add(adapter)

    def can_run(self, adapter: Adapter[R, C]) -> bool:
        """Return True if the adapter is in memory, and has a slot or can get one."""
        return adapter.content is not None and (adapter.slot is not None or self._free_slot() is not None)

    def enter(self, adapter: Adapter[R, C], first: bool) -> None:
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

    def leave(self, adapter: Adapter[R, C]) -> None:
        """Count a request that stops running."""
        adapter.num_running -= 1

    def close(self, adapter: Adapter[R, C], started: bool) -> None:
        """Forget a request that has ended."""
        adapter.num_requests -= 1
        adapter.num_started -= started
        if not adapter.num_requests and (adapter.removed or adapter.content is None):
            self._forget(adapter)

    # Operations

    def add(self, named: R) -> Adapter[R, C]:
        """Start to read an adapter that no request needs yet. `keep` must be called once that is done."""
        adapter = self._find(named)
        adapter.last_use = next(self._uses)
        if adapter.reading is None and not self._start(adapter, set()):
            adapter.reading = self._thread.submit(self._read_again, adapter)  # to find errors
        return adapter

    def keep(self, adapter: Adapter[R, C]) -> None:
        """Keep an adapter that was read for `add`, unless it can't be used or memory has no room."""
        unused = not (adapter.num_requests or adapter.pinned)
        if unused and (adapter.content is None or len(self._held()) > self._capacity):
            self._evict(adapter)

    def remove(self, adapter_id: int) -> bool:
        """Remove an adapter; requests that have it go on. Return False if it isn't in memory."""
        adapter = self._adapters.get(adapter_id)
        if adapter is None or adapter.content is None:
            return False
        adapter.removed, adapter.pinned = True, False
        del self._adapters[adapter_id]
        if not adapter.num_requests:
            self._forget(adapter)
        return True

    def pin(self, adapter_id: int) -> None:
        """Keep an adapter in memory and, once it has run, in its slot. Raises AdapterError if that can't be."""
        adapter = self._adapters.get(adapter_id)
        if adapter is None or adapter.content is None:
            raise AdapterError(f"there is no adapter {adapter_id} in memory; add_lora loads it")
        pinned = sum(one.pinned for one in self._adapters.values() if one is not adapter)
        if pinned + 1 >= len(self._slots):
            raise AdapterError(
                f"max_loras is {len(self._slots)} and {pinned} adapters are pinned; one slot stays for the others"
            )
        adapter.pinned = True

    def vacate_all(self) -> None:
        """Take every adapter out of its slot, whose content is lost. No request runs."""
        for slot in range(len(self._slots)):
            self._vacate(slot)

    def _find(self, named: R) -> Adapter[R, C]:
        known = self._adapters.get(named.adapter_id)
        if known is not None and known.error is None and known.named.content != named.content:
            error = f"its id {named.adapter_id} is that of {known.named.content}; another needs another id"
            reading: Future[C] = Future()
            reading.set_exception(AdapterError(error))
            return Adapter(named, reading)
        if known is None or known.error is not None:
            known = self._adapters[named.adapter_id] = Adapter(named)
        return known

    def _start(self, adapter: Adapter[R, C], kept: set[Adapter[R, C]]) -> bool:
        """Start to read an adapter; return False if memory has no room, even without those that nobody needs."""
        if len(self._held()) >= self._capacity:
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

    def _held(self) -> list[Adapter[R, C]]:
        """Return the adapters that are in memory or being read."""
        return [one for one in self._adapters.values() if one.reading is not None and one.error is None]

    def _read_again(self, adapter: Adapter[R, C]) -> C:
        content = self._read(adapter.named)
        if adapter.digest not in (None, content.digest):
            raise AdapterError(
                f"the files in {adapter.named.path} have changed; another content needs another id"
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

    def _evict(self, adapter: Adapter[R, C]) -> None:
        adapter.reading = None
        if adapter.slot is not None:
            self._vacate(adapter.slot)
        if not adapter.num_requests:
            self._forget(adapter)

    def _vacate(self, slot: int) -> None:
        owner = self._slots[slot]
        if owner is not None:
            owner.slot = self._slots[slot] = None

    def _forget(self, adapter: Adapter[R, C]) -> None:
        if self._adapters.get(adapter.named.adapter_id) is adapter:
            del self._adapters[adapter.named.adapter_id]
        if adapter.slot is not None:
            self._vacate(adapter.slot)
