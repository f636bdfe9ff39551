"""The adapters that a server should serve, and its progress towards them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from engine_server.contract.cluster.adapters import (
    MODEL_VARIABLE,
    AdapterState,
    AdapterStates,
    WantedAdapters,
)
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.adapters import ServedAdapters

logger = logging.getLogger(__name__)


class AdapterSet:
    """A wanted set of adapters that is reached in the background. One that fails is tried again with the next set."""

    def __init__(self, served: ServedAdapters) -> None:
        self._served = served
        self._wanted: dict[str, str] = {}
        # By name; the URI that failed, and why.
        self._failures: dict[str, tuple[str, str]] = {}
        # Names that are served because they were wanted.
        self._managed: set[str] = set()
        self._work: asyncio.Task[None] | None = None

    def want(self, wanted: dict[str, str]) -> asyncio.Task[None]:
        """Serve exactly these adapters, URIs by name, besides those that were loaded one by one."""
        self._wanted, self._failures = wanted, {}
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._reach())
        return self._work

    def states(self) -> AdapterStates:
        return AdapterStates([self._state(name, uri) for name, uri in self._wanted.items()])

    def _state(self, name: str, uri: str) -> AdapterState:
        served = self._served.get(name)
        digest = served.digest if served and name in self._managed else None
        if digest and served and served.uri == uri:
            return AdapterState(name, uri, "ready", digest)
        if (failure := self._failures.get(name)) and failure[0] == uri:
            return AdapterState(name, uri, "failed", digest, failure[1])
        return AdapterState(name, uri, "loading", digest)

    async def _reach(self) -> None:
        """Load and unload one adapter after another until the latest set is reached."""
        while (change := self._next_change()) is not None:
            name, uri = change
            if uri is None:
                await self._served.unload(name)
                self._managed.discard(name)
                continue
            try:
                await self._served.load(name, uri, replace=True)
                self._managed.add(name)
            except InvalidRequestError as error:
                self._failures[name] = uri, str(error)
                logger.warning("the adapter %s can't be served: %s", name, error)

    def _next_change(self) -> tuple[str, str | None] | None:
        """Return an adapter to load, or one to unload without a URI; None if nothing is left to do."""
        for name in self._managed - self._wanted.keys():
            return name, None
        for state in self.states().adapters:
            if state.state == "loading":
                return state.name, state.uri
        return None


def read_adapters_file(file: Path) -> dict[str, str]:
    """Return the adapters in a file for this engine's model, URIs by name. Raises ValueError."""
    try:
        wanted = msgspec.json.decode(file.read_bytes(), type=WantedAdapters)
        given = wanted.by_name()
    except (OSError, ValueError) as error:
        raise ValueError(f"adapters_file {file}: {error}") from error
    return given if is_ours(wanted) else {}


def is_ours(wanted: WantedAdapters) -> bool:
    """Return True unless a list is for another model than this engine's, and log that."""
    model = os.environ.get(MODEL_VARIABLE, "")
    if wanted.is_for(model):
        return True
    logger.warning(
        "a list of adapters for the model %s is ignored: this engine serves %s", wanted.model, model
    )
    return False
