"""The operations of an engine that its core runs by name."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from engine_server.engine.compat import refuse, rpc_arguments
from engine_server.engine.front_end import FrontEnd
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest


class CoreOperations(ABC):
    """Caches, sleep, adapters, profiles and calls on every rank. Each call returns once the core has answered."""

    _front_end: FrontEnd

    @abstractmethod
    async def _call(self, method: str, *args: Any) -> Any:
        """Run an operation of the core, and return its result. Raises EngineDeadError, ValueError or RuntimeError."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Empty the prefix cache. Returns False and changes nothing while requests hold blocks.

        reset_running_requests: preempt requests that hold blocks first; they are computed again.
        reset_connector: only False is allowed, since there is no connector.
        """
        refuse(reset_connector=reset_connector)
        return bool(await self._call("reset_prefix_cache", reset_running_requests))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  (vLLM's name)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the executor on every rank, and return their results.

        timeout: seconds after which TimeoutError is raised while the call keeps running; None: never. Arguments
        and results are plain data, encoded as msgpack. Raises RuntimeError if a call fails.
        """
        async with asyncio.timeout(timeout):
            return list(await self._call("collective_rpc", *rpc_arguments(method, args, kwargs)))

    async def sleep(self, level: int = 1) -> None:
        """Free the KV cache; level 1 moves a GPU's weights to the host, level 2 drops them. Requests wait."""
        await self._call("sleep", level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake "weights", "kv_cache", or both; once both are awake, requests continue where they were."""
        await self._call("wake_up", tags)

    async def is_sleeping(self) -> bool:
        return bool(await self._call("is_sleeping"))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter into memory, so that its first request needn't wait. Raises RuntimeError if it can't be."""
        return bool(await self.load_lora(lora_request))

    async def load_lora(self, lora_request: LoRARequest) -> str:
        """Do what `add_lora` does, and return the SHA-256 of the adapter's files."""
        return str(await self._call("add_lora", self._front_end.adapter_call(lora_request)))

    async def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter from memory; return False if it isn't there. Requests that have it go on."""
        return bool(await self._call("remove_lora", lora_id))

    async def list_loras(self) -> set[int]:
        """Return the ids of the LoRA adapters in memory."""
        return set(await self._call("list_loras"))

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory and in the device's slot. Raises RuntimeError if no slot would be left."""
        return bool(await self._call("pin_lora", lora_id))

    async def add_prompt_adapter(self, prompt_adapter_request: PromptAdapterRequest) -> bool:
        """Read an adapter into memory, so that its first request needn't wait. Raises RuntimeError if it can't be."""
        return bool(await self.load_prompt_adapter(prompt_adapter_request))

    async def load_prompt_adapter(self, prompt_adapter_request: PromptAdapterRequest) -> str:
        """Do what `add_prompt_adapter` does, and return the SHA-256 of the adapter's files."""
        named = self._front_end.prompt_adapter_call(prompt_adapter_request)
        return str(await self._call("add_prompt_adapter", named))

    async def remove_prompt_adapter(self, prompt_adapter_id: int) -> bool:
        """Remove an adapter from memory; return False if it isn't there. Requests that have it go on."""
        return bool(await self._call("remove_prompt_adapter", prompt_adapter_id))

    async def list_prompt_adapters(self) -> set[int]:
        """Return the ids of the prompt adapters in memory."""
        return set(await self._call("list_prompt_adapters"))

    async def start_profile(self) -> None:
        """Trace the core with torch.profiler, into the folder `torch_profiler_dir`."""
        await self._call("start_profile")

    async def stop_profile(self) -> None:
        """Write the trace."""
        await self._call("stop_profile")
