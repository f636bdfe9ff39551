"""The adapters that a server serves by name."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine_server.contract.quoting import quote
from engine_server.models import ModelSourceError
from engine_server.models.adapter import resolve_adapter
from engine_server.requests.adapters import LoRARequest
from engine_server.requests.errors import InvalidRequestError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine

# In hexadecimal digits, as the model's fingerprint.
LENGTH = 32


class ServedAdapter(NamedTuple):
    """One adapter, in the content that it had when it was loaded."""

    uri: str
    lora: LoRARequest
    # SHA-256 of its files.
    digest: str

    def fingerprint(self, model: str) -> str:
        """Return the fingerprint of the model with this adapter; `model`: the model's own."""
        return hashlib.sha256(f"{model} {self.digest}".encode()).hexdigest()[:LENGTH]


class ServedAdapters:
    """Adapters by name. Each content that is loaded gets a new id, so that requests keep theirs when it is replaced."""

    def __init__(self) -> None:
        self._served: dict[str, ServedAdapter] = {}
        self._ids = itertools.count(1)
        # One change at a time.
        self._lock = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._served)

    def get(self, name: str) -> ServedAdapter | None:
        return self._served.get(name)

    async def load(
        self, engine: AsyncLLMEngine, taken: Iterable[str], name: str, uri: str, replace: bool
    ) -> None:
        """Serve the adapter `uri` as `name`. Requests in flight go on with what they began with.

        taken: the model's own names. replace: an adapter of this name is replaced; otherwise that is an error.
        Raises InvalidRequestError for one that can't be served.
        """
        async with self._lock:
            former = self._served.get(name)
            if name in taken:
                raise InvalidRequestError(f"{quote(name)} is a name of the model itself", "lora_name")
            if former is not None and not replace:
                raise InvalidRequestError(
                    f"the adapter {quote(name)} is loaded already; load_inplace=true replaces it", "lora_name"
                )
            try:
                folder = await asyncio.to_thread(resolve_adapter, uri)
                lora = LoRARequest(name, next(self._ids), str(folder))
                digest = await asyncio.to_thread(content_digest, folder)
                await engine.add_lora(lora)
            except (ModelSourceError, OSError, ValueError, RuntimeError) as error:
                raise InvalidRequestError(str(error), "lora_path") from None
            self._served[name] = ServedAdapter(uri, lora, digest)
            if former is not None:
                await engine.remove_lora(former.lora.lora_int_id)

    async def unload(self, engine: AsyncLLMEngine, name: str) -> bool:
        """Stop serving an adapter, and return False if there is none of this name. Requests in flight go on."""
        async with self._lock:
            served = self._served.pop(name, None)
            if served is not None:
                await engine.remove_lora(served.lora.lora_int_id)
            return served is not None


def content_digest(folder: Path) -> str:
    """Return the SHA-256 of an adapter's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("adapter_*")):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
