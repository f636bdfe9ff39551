"""A watched collection: list, watch, and list again when the watch may have missed something."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import aiohttp
import msgspec

from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.objects import Identity, Object

log = logging.getLogger(__name__)

PAGE_SIZE = 500
# The API server ends a watch after this; the next one continues from its last version.
WATCH_SECONDS = 60
RELIST_SECONDS = 300.0
LIST_TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5.0
# Between attempts after failures, doubling up to the longest.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

T = TypeVar("T", bound=Object)


class ListMetadata(msgspec.Struct, rename="camel"):
    """The metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """One page of a list."""

    metadata: ListMetadata
    items: list[msgspec.Raw]


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """The body of an error."""

    message: str = ""


class Watch(Generic[T]):
    """Follows the objects of one kind.

    `on_change` is called with each object that was added, changed or removed, and whether it exists.
    """

    def __init__(
        self,
        access: Access,
        path: str,
        kind: type[T],
        on_change: Callable[[T, bool], None],
        selector: str = "",
    ) -> None:
        self._objects: dict[Identity, T] = {}
        # True once the collection was listed.
        self.synced = False
        self._access = access
        self._path = path
        self._query = {"labelSelector": selector} if selector else {}
        self._decoder = msgspec.json.Decoder(kind)
        self._on_change = on_change

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow the collection until cancelled; failures are logged and retried."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                version: str | None = await self._list(session)
                pause = FIRST_PAUSE_SECONDS
                relist_at = time.monotonic() + RELIST_SECONDS * random.uniform(0.8, 1.2)
                while version is not None and time.monotonic() < relist_at:
                    version = await self._watch(session, version)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
                log.warning(
                    "failed to watch %s, retrying: %s", self._path, str(error) or type(error).__name__
                )
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _list(self, session: aiohttp.ClientSession) -> str:
        """List all objects, report the differences, and return the list's version."""
        found: dict[Identity, T] = {}
        query = {**self._query, "limit": str(PAGE_SIZE)}
        while True:
            async with self._get(session, query, LIST_TIMEOUT_SECONDS) as response:
                page = msgspec.json.decode(await response.read(), type=Page)
            for raw in page.items:
                item = self._decoder.decode(raw)
                found[item.identity] = item
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        before, self._objects, self.synced = self._objects, found, True
        for identity, item in (before | found).items():
            if before.get(identity) != found.get(identity):
                self._on_change(item, identity in found)
        return page.metadata.resource_version

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> str | None:
        """Follow changes until the server ends the watch.

        Return the version to continue from, or None if that is too old and a list is needed.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", **self._query}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        async with self._get(session, query, WATCH_SECONDS + LIST_TIMEOUT_SECONDS) as response:
            async for line in lines(response.content):
                event = msgspec.json.decode(line, type=Event)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=Status)
                    log.info("the watch of %s ended: %s", self._path, status.message)
                    await asyncio.sleep(FIRST_PAUSE_SECONDS * random.uniform(0.5, 1.5))
                    return None
                item = self._decoder.decode(event.object)
                version = item.metadata.resource_version
                if event.type == "DELETED":
                    self._objects.pop(item.identity, None)
                elif event.type != "BOOKMARK":
                    self._objects[item.identity] = item
                if event.type != "BOOKMARK":
                    self._on_change(item, event.type != "DELETED")
        return version

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: dict[str, str], timeout_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response to a GET. Raises aiohttp.ClientError for a status other than 200."""
        async with session.get(
            self._access.server + self._path,
            params=query,
            headers=self._access.headers(),
            ssl=self._access.tls or True,
            timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS),
        ) as response:
            if response.status != 200:
                status = msgspec.json.decode(await response.read() or b"{}", type=Status)
                raise aiohttp.ClientError(f"{response.status} {status.message}")
            yield response


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield complete lines of any length: an EndpointSlice can exceed the limit of aiohttp's own readline."""
    rest: list[bytes] = []
    async for data in content.iter_any():
        *complete, last = data.split(b"\n")
        if complete:
            complete[0] = b"".join((*rest, complete[0]))
            rest.clear()
        rest.append(last)
        for line in complete:
            if line:
                yield line
