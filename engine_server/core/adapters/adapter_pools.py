"""The adapters of a core, of both kinds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from engine_server.core.adapters.adapter import Adapter, RequestAdapters
from engine_server.core.adapters.adapter_pool import AdapterPool
from engine_server.core.span import Span
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest

AnyPool = AdapterPool[Any, Any]


@dataclass(frozen=True, slots=True)
class AdapterPools:
    """A pool of each kind, of which a request may need none, one or both. None: requests name no such adapters."""

    lora: AdapterPool[LoRARequest, LowRankAdapter] | None = None
    prompt: AdapterPool[PromptAdapterRequest, Span] | None = None

    def __bool__(self) -> bool:
        """Return True if requests may name adapters."""
        return self.lora is not None or self.prompt is not None

    def open(self, lora: LoRARequest | None, prompt: PromptAdapterRequest | None) -> RequestAdapters:
        """Return the adapters of a new request, which may not be in memory yet."""
        return RequestAdapters(
            self.lora.open(lora) if self.lora and lora else None,
            self.prompt.open(prompt) if self.prompt and prompt else None,
        )

    def read_next(self, waiting: Sequence[RequestAdapters]) -> None:
        """Start to read adapters for which memory has room. waiting: those of the waiting requests, in their order."""
        if self.lora is not None:
            self.lora.read_next(adapters.lora for adapters in waiting if adapters.lora)
        if self.prompt is not None:
            self.prompt.read_next(adapters.prompt for adapters in waiting if adapters.prompt)

    def can_run(self, adapters: RequestAdapters, reserved: Collection[AnyPool]) -> bool:
        """Return True if a request's adapters are in memory, and have slots or can get some that are not `reserved`."""
        return all(pool not in reserved and pool.can_run(adapter) for pool, adapter in self._used(adapters))

    def lacking(self, adapters: RequestAdapters) -> set[AnyPool]:
        """Return the pools in which an adapter finds no slot, or no room in memory."""
        return {
            pool
            for pool, adapter in self._used(adapters)
            if not (adapter.reading_now or pool.can_run(adapter))
        }

    def enter(self, adapters: RequestAdapters, first: bool) -> None:
        """Count a request that runs from now on, and give its adapters slots; `first`: it has not run before."""
        for pool, adapter in self._used(adapters):
            pool.enter(adapter, first)

    def leave(self, adapters: RequestAdapters) -> None:
        """Count a request that stops running."""
        for pool, adapter in self._used(adapters):
            pool.leave(adapter)

    def close(self, adapters: RequestAdapters, started: bool) -> None:
        """Forget a request that has ended."""
        for pool, adapter in self._used(adapters):
            pool.close(adapter, started)

    def _used(self, adapters: RequestAdapters) -> list[tuple[AnyPool, Adapter[Any, Any]]]:
        pairs = ((self.lora, adapters.lora), (self.prompt, adapters.prompt))
        return [(pool, adapter) for pool, adapter in pairs if pool is not None and adapter is not None]


NO_POOLS = AdapterPools()
