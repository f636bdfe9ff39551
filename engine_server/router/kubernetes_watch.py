"""A list of objects that stays true: list, watch, and list again when the watch may have missed something."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Generic, TypeVar

import aiohttp
import msgspec

from .kubernetes_access import Access

log = logging.getLogger(__name__)

PAGE = 500
WATCH_SECONDS = 60  # the server ends a watch after this; the next one goes on from there
RELIST_SECONDS = 300.0
LIST_TIMEOUT = 30.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

T = TypeVar("T", bound="Object")


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = {}


class Object(msgspec.Struct):
    """What every kind has; kinds add the fields that they need."""

    metadata: Metadata

    @property
    def identity(self) -> "Identity":
        return self.metadata.namespace, self.metadata.name


class ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    metadata: ListMetadata
    items: list[msgspec.Raw]


class Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    message: str = ""


Identity = tuple[str, str]


class Watch(Generic[T]):
    """`changed` hears of each object that came, changed or went, and whether it is there."""

    def __init__(
        self, access: Access, path: str, kind: type[T], changed: Callable[[T, bool], None], selector: str = ""
    ) -> None:
        self._objects: dict[Identity, T] = {}
        self.synced = False
        self._access = access
        self._path = path
        self._query = {"labelSelector": selector} if selector else {}
        self._decoder = msgspec.json.Decoder(kind)
        self._changed = changed

    async def run(self, session: aiohttp.ClientSession) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                version: str | None = await self._list(session)
                pause = FIRST_PAUSE
                relist_at = time.monotonic() + RELIST_SECONDS * random.uniform(0.8, 1.2)
                while version is not None and time.monotonic() < relist_at:
                    version = await self._watch(session, version)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
                log.warning("%s: %s; trying again", self._path, str(error) or type(error).__name__)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _list(self, session: aiohttp.ClientSession) -> str:
        found: dict[Identity, T] = {}
        query = {**self._query, "limit": str(PAGE)}
        while True:
            async with self._get(session, query, LIST_TIMEOUT) as response:
                page = msgspec.json.decode(await response.read(), type=Page)
            for raw in page.items:
                one = self._decoder.decode(raw)
                found[one.identity] = one
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        before, self._objects, self.synced = self._objects, found, True
        for identity, one in (before | found).items():
            if before.get(identity) != found.get(identity):
                self._changed(one, identity in found)
        return page.metadata.resource_version

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> str | None:
        """Follow changes until the server ends it: the version to go on from, or None if a list is needed."""
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", **self._query}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        async with self._get(session, query, WATCH_SECONDS + LIST_TIMEOUT) as response:
            async for line in lines(response.content):
                event = msgspec.json.decode(line, type=Event)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=Status)
                    log.info("%s: the watch ended: %s", self._path, status.message)
                    await asyncio.sleep(FIRST_PAUSE * random.uniform(0.5, 1.5))
                    return None
                one = self._decoder.decode(event.object)
                version = one.metadata.resource_version
                if event.type == "DELETED":
                    self._objects.pop(one.identity, None)
                elif event.type != "BOOKMARK":
                    self._objects[one.identity] = one
                if event.type != "BOOKMARK":
                    self._changed(one, event.type != "DELETED")
        return version

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: dict[str, str], seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with session.get(
            self._access.server + self._path,
            params=query,
            headers=self._access.headers(),
            ssl=self._access.tls or True,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=5.0),
        ) as response:
            if response.status != 200:
                told = msgspec.json.decode(await response.read() or b"{}", type=Status)
                raise aiohttp.ClientError(f"{response.status} {told.message}")
            yield response


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, however long: one EndpointSlice can be larger than what aiohttp's own readline accepts."""
    rest: list[bytes] = []
    async for data in content.iter_any():
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = b"".join((*rest, whole[0]))
            rest.clear()
        rest.append(last)
        for line in whole:
            if line:
                yield line
