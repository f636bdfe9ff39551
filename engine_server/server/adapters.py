"""The adapters that a server serves by name."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine_server.contract.base.quoting import quote
from engine_server.model_sources import ModelSourceError
from engine_server.model_sources.adapter import resolve_adapter
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import InvalidRequestError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine

# In hexadecimal digits, as the model's fingerprint.
LENGTH = 32


class ServedAdapter(NamedTuple):
    """One adapter, in the content that it had when it was loaded."""

    uri: str
    # The one of these that is set is its kind.
    lora: LoRARequest | None
    prompt_adapter: PromptAdapterRequest | None
    # SHA-256 of its files.
    digest: str

    @property
    def num_virtual(self) -> int:
        """Number of its virtual tokens."""
        return self.prompt_adapter.prompt_adapter_num_virtual_tokens if self.prompt_adapter else 0

    def fingerprint(self, model: str) -> str:
        """Return the fingerprint of the model with this adapter; `model`: the model's own."""
        return hashlib.sha256(f"{model} {self.digest}".encode()).hexdigest()[:LENGTH]

    async def unload(self, engine: AsyncLLMEngine) -> None:
        """Remove it from the engine's memory; requests in flight go on."""
        if self.lora is not None:
            await engine.remove_lora(self.lora.lora_int_id)
        if self.prompt_adapter is not None:
            await engine.remove_prompt_adapter(self.prompt_adapter.prompt_adapter_id)


class ServedAdapters:
    """Adapters by name. Each content that is loaded gets a new id, so that requests keep theirs when it is replaced."""

    def __init__(self, engine: AsyncLLMEngine, taken: Collection[str]) -> None:
        """taken: the model's own names."""
        self._engine = engine
        self._taken = taken
        self._served: dict[str, ServedAdapter] = {}
        self._ids = itertools.count(1)
        # One change at a time.
        self._lock = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._served)

    def get(self, name: str) -> ServedAdapter | None:
        return self._served.get(name)

    async def load(self, name: str, uri: str, replace: bool = False) -> None:
        """Serve the adapter `uri` as `name`. Requests in flight go on with what they began with.

        replace: an adapter of this name is replaced; otherwise that is an error. Raises InvalidRequestError, a
        ValueError, for one that can't be served.
        """
        async with self._lock:
            former = self._served.get(name)
            if name in self._taken:
                raise InvalidRequestError(f"{quote(name)} is a name of the model itself", "lora_name")
            if former is not None and not replace:
                raise InvalidRequestError(
                    f"the adapter {quote(name)} is loaded already; load_inplace=true replaces it", "lora_name"
                )
            try:
                folder = await asyncio.to_thread(resolve_adapter, uri)
                adapter = await load_adapter(self._engine, name, uri, next(self._ids), folder)
            except (ModelSourceError, OSError, ValueError, RuntimeError) as error:
                raise InvalidRequestError(str(error), "lora_path") from None
            self._served[name] = adapter
            if former is not None:
                await former.unload(self._engine)

    async def unload(self, name: str) -> bool:
        """Stop serving an adapter, and return False if there is none of this name. Requests in flight go on."""
        async with self._lock:
            served = self._served.pop(name, None)
            if served is not None:
                await served.unload(self._engine)
            return served is not None


async def load_adapter(
    engine: AsyncLLMEngine, name: str, uri: str, number: int, folder: Path
) -> ServedAdapter:
    """Read the adapter in a folder into the engine's memory, by the id `number`.

    Raises OSError, ValueError or RuntimeError.
    """
    num_virtual = await asyncio.to_thread(num_virtual_tokens, folder)
    if num_virtual is None:
        lora = LoRARequest(name, number, str(folder))
        return ServedAdapter(uri, lora, None, await engine.load_lora(lora))
    prompt_adapter = PromptAdapterRequest(name, number, str(folder), num_virtual)
    return ServedAdapter(uri, None, prompt_adapter, await engine.load_prompt_adapter(prompt_adapter))


def num_virtual_tokens(folder: Path) -> int | None:
    """Return the number of virtual tokens of a prompt adapter, None for LoRA. Raises OSError or ValueError."""
    from engine_server.modeling.adapters import (  # with torch: once the engine is loaded
        peft_folder,
        prompt_folder,
    )

    return prompt_folder.num_virtual_tokens(peft_folder.read_settings(folder))
