"""A watched collection: list, watch, and list again when the watch may have missed something."""

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

import aiohttp
import msgspec

from engine_server.contract.base.lines import lines
from engine_server.contract.base.nesting import decode_shallow
from engine_server.contract.cluster.kubernetes_objects import Identity, Object
from engine_server.contract.cluster.page_size import PageSize, read_bounded
from engine_server.contract.cluster.paged_list import pages
from engine_server.router.backoff import Backoff
from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.objects import Message

log = logging.getLogger(__name__)

# The API server ends a watch after this; the next one continues from its last version.
WATCH_SECONDS = 60
RELIST_SECONDS = 300.0
LIST_TIMEOUT_SECONDS = 30.0
# Objects on a page: on the first, and at most.
FIRST_ON_PAGE = 25
MOST_ON_PAGE = 500
CONNECT_TIMEOUT_SECONDS = 5.0
# Between attempts after failures, doubling up to the longest.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0

# Failures that an API server, or the way to it, can cause.
EXPECTED = (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError)

T = TypeVar("T", bound=Object)


class RefusedError(aiohttp.ClientError):
    """An answer that the collection may not be read or does not exist."""


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


EVENT = msgspec.json.Decoder(Event)
HEAD = msgspec.json.Decoder(Object)


class Watch(Generic[T]):
    """Follows the objects of one kind.

    `on_change` is called with each object that was added, changed or removed, and whether it exists. While the API
    server fails or cannot be reached, the objects stay as they were, and so does one that cannot be decoded.
    """

    def __init__(
        self,
        access: Access,
        path: str,
        kind: type[T],
        on_change: Callable[[T, bool], None],
        selector: str = "",
        is_wanted: Callable[[T], bool] = lambda _: True,
    ) -> None:
        """is_wanted: returns False for an object that is treated as if it did not exist."""
        self._objects: dict[Identity, T] = {}
        # Why objects could not be decoded when they were read last.
        self._unreadable: dict[Identity, str] = {}
        # True once the collection was listed.
        self.synced = False
        # True while the API server answers that the collection may not be listed or is not there.
        self.refused = False
        # Number of lists and watches that failed.
        self.failures = 0
        # Time (monotonic) at which the API server was last heard of.
        self._heard = time.monotonic()
        # The message of the failure that was logged last, empty after a success.
        self._last_failure = ""
        self._access = access
        self._path = path
        self._query = {"labelSelector": selector} if selector else {}
        self._size = PageSize(MOST_ON_PAGE, FIRST_ON_PAGE)
        self._is_wanted = is_wanted
        self._decoder = msgspec.json.Decoder(kind)
        self._on_change = on_change

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow the collection until cancelled; failures are logged and retried."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                version: str | None = await self._list(session)
                relist_at = time.monotonic() + RELIST_SECONDS * random.uniform(0.8, 1.2)
                while version is not None and time.monotonic() < relist_at:
                    started = time.monotonic()
                    version = await self._watch(session, version)
                    backoff.reset()
                    if time.monotonic() - started < FIRST_PAUSE_SECONDS:  # it was ended as soon as it began
                        await backoff.wait()
            except (
                Exception
            ) as error:  # whatever the API server answers, the router goes on with what it knows
                self.refused = isinstance(error, RefusedError)
                self._report_failure(error)
                await backoff.wait()

    @property
    def age(self) -> float:
        """Seconds since the API server was last heard of: at least once a minute while all is well."""
        return time.monotonic() - self._heard

    async def _list(self, session: aiohttp.ClientSession) -> str:
        """List all objects, report the differences, and return the list's version."""
        found: dict[Identity, T] = {}
        version = ""
        async for page in pages(partial(self._page, session), self._query, self._size):
            version = page.metadata.resource_version
            for raw in page.items:
                head = HEAD.decode(raw)
                item = self._read(head, raw) or self._objects.get(head.identity)
                if item is not None and self._is_wanted(item):
                    found[head.identity] = item
        for identity, item in (self._objects | found).items():
            if self._objects.get(identity) != found.get(identity):
                self._change(item, identity in found)
        self.synced, self.refused = True, False
        return version

    async def _page(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], largest: int | None
    ) -> bytes:
        """Return the text of a page. Raises AnswerTooLargeError."""
        async with self._get(session, query, LIST_TIMEOUT_SECONDS) as response:
            return await read_bounded(response.content.iter_any(), largest)

    def _read(self, head: Object, raw: msgspec.Raw) -> T | None:
        """Return an object, None if it cannot be decoded."""
        try:
            item = self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            if self._unreadable.get(head.identity) != str(error):
                self._unreadable[head.identity] = str(error)
                log.warning("%s of %s cannot be read: %s", "/".join(head.identity), self._path, error)
            return None
        self._unreadable.pop(head.identity, None)
        return item

    def _change(self, item: T, exists: bool) -> None:
        self._on_change(item, exists)
        if exists:
            self._objects[item.identity] = item
        else:
            self._objects.pop(item.identity, None)

    def _report_failure(self, error: Exception) -> None:
        """Count a failure, and log it unless the one before was the same."""
        self.failures += 1
        message = str(error) or type(error).__name__
        if message != self._last_failure:
            unexpected = not isinstance(error, EXPECTED)
            log.warning("failed to watch %s, retrying: %s", self._path, message, exc_info=unexpected)
            self._last_failure = message

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> str | None:
        """Follow changes until the server ends the watch.

        Return the version to continue from, or None if that is too old and a list is needed.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", **self._query}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        async with self._get(session, query, WATCH_SECONDS + LIST_TIMEOUT_SECONDS) as response:
            if self._last_failure:
                log.info("watching %s again", self._path)
                self._last_failure = ""
            async for line in lines(response.content.iter_any()):
                self._heard = time.monotonic()
                event = decode_shallow(EVENT.decode, line)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=Message)
                    log.info("the watch of %s ended: %s", self._path, status.message)
                    return None
                head = HEAD.decode(event.object)
                version = head.metadata.resource_version
                if event.type == "BOOKMARK":
                    continue
                if event.type == "DELETED":
                    self._unreadable.pop(head.identity, None)
                    item = self._objects.get(head.identity)
                else:
                    item = self._read(head, event.object)
                if item is not None:
                    exists = event.type != "DELETED" and self._is_wanted(item)
                    if exists or head.identity in self._objects:
                        self._change(item, exists)
        return version

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], timeout_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response to a GET. Raises RefusedError or aiohttp.ClientError for a status other than 200."""
        headers = await self._access.headers()
        async with session.get(
            self._access.server + self._path,
            params=query,
            headers=headers,
            ssl=self._access.tls or True,
            timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS),
        ) as response:
            if response.status == 401:
                self._access.refused(headers)
            if response.status != 200:
                message = response.reason
                with suppress(
                    msgspec.DecodeError, aiohttp.ClientError
                ):  # what is between may answer in any format
                    message = msgspec.json.decode(await response.read(), type=Message).message
                failure = RefusedError if response.status in (403, 404) else aiohttp.ClientError
                raise failure(f"{response.status} {message}")
            self._heard = time.monotonic()
            yield response
