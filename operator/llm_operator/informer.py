"""The upkeep of the store for one namespace or for the whole cluster: by watches, and by relists in between."""

import asyncio
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import kopf

from llm_operator import handlers, metrics
from llm_operator.control.api_errors import FAILURES, describe, is_missing, outage_seconds
from llm_operator.control.cluster import REQUEST_SECONDS, Access, Cluster
from llm_operator.control.queue import WorkQueue
from llm_operator.control.tracing import Watch
from llm_operator.control.turns import Priority
from llm_operator.control.watching.pages import Pages
from llm_operator.control.watching.relist import Relist
from llm_operator.control.watching.sessions import Sessions
from llm_operator.control.watching.store import Store
from llm_operator.kinds import LLMDEPLOYMENTS, OWNED, PODS, WATCHED, Resource
from llm_operator.settings import Settings

# LLMDeployments are listed last: once one is known, so is all that belongs to it.
ALL = (*OWNED, LLMDEPLOYMENTS)
# Pods are many, and their watch loses no more than others: every fifth relist lists them too.
ALL_BUT_PODS = tuple(resource for resource in ALL if resource != PODS)
PODS_EVERY = 5
RETRY_SECONDS = 2
# A namespace that cannot be read is asked for again at this interval.
MISSING_SECONDS = 10
# A kind that discovery has missed is never listed and watched, until kopf starts again. A call about one that it knows
# ends within REQUEST_SECONDS, and is made again a second later.
CONFIRM_SECONDS = REQUEST_SECONDS + 5
DEAD_SECONDS = 60

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Informer:
    """Keeps the store up to date with a namespace, or with the whole cluster if its name is empty."""

    cluster: Cluster
    store: Store
    queue: WorkQueue
    configuration: Access
    settings: Settings
    namespace: str
    # Set as soon as the first list has succeeded or failed.
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    # Asks for a relist, and for watches that are open, at once.
    is_stale: asyncio.Event = field(default_factory=asyncio.Event)
    is_missing: bool = False
    listed_at: float = field(default_factory=time.monotonic)
    watches: Sequence[Watch] = field(init=False)
    pages: Pages = field(init=False)

    def __post_init__(self) -> None:
        self.pages = Pages()
        self.watches = [Watch(resource, self.namespace) for resource in WATCHED]
        metrics.NAMESPACE_MISSING.labels(self.namespace).set(0)

    def __str__(self) -> str:
        return f"namespace {self.namespace}" if self.namespace else "the cluster"

    def problems(self) -> Iterator[str]:
        """Yield the reasons why the store may be out of date. A namespace that cannot be read is not one."""
        if self.is_missing:
            return
        overdue = time.monotonic() - self.listed_at - self.settings.relist_seconds
        if overdue > DEAD_SECONDS:
            yield f"{self} was not listed for {overdue + self.settings.relist_seconds:.0f} s"
        for watch in self.watches:
            if watch.interrupted_seconds > DEAD_SECONDS:
                yield f"{watch.resource.plural} of {self} were not watched for {watch.interrupted_seconds:.0f} s"

    async def run(self, stop: asyncio.Event) -> None:
        """List and watch until `stop` is set."""
        while not stop.is_set():
            pause: float = RETRY_SECONDS
            try:
                await self.list_kinds(ALL)
                self.note_missing(None)
                self.tried.set()
                await self.follow(stop)
            # Whatever an answer has in it, the operator goes on with what it knows.
            except Exception as error:
                self.note_missing(error)
                self.tried.set()
                pause = MISSING_SECONDS if self.is_missing else seconds_after(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)

    def note_missing(self, error: Exception | None) -> None:
        """Record and log if the namespace exists and may be read."""
        was_missing, self.is_missing = self.is_missing, error is not None and is_missing(error)
        metrics.NAMESPACE_MISSING.labels(self.namespace).set(self.is_missing)
        if was_missing and not self.is_missing:
            logger.info("%s can be read now", self)
        if error is not None and not (was_missing and self.is_missing):
            unexpected = None if isinstance(error, FAILURES) else error
            logger.warning("cannot list %s: %s", self, describe(error), exc_info=unexpected)

    async def follow(self, stop: asyncio.Event) -> None:
        """Watch and relist until one of them ends. Raises `ApiException` if the namespace may not be read any more."""
        tasks = [asyncio.create_task(self.watch(stop)), asyncio.create_task(self.keep_relisting())]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(*tasks)
            for watch in self.watches:
                watch.interrupt()
        for task in ended:
            task.result()

    async def watch(self, stop: asyncio.Event) -> None:
        """Watch with kopf until `stop` is set, kopf gives up, or it makes no call to open a watch."""
        sessions = Sessions(self.configuration, self.pages, self.watches)
        tasks = await kopf.spawn_tasks(
            memo=handlers.Memo(self.store, self.queue, sessions, self.settings.watch_silence_seconds),
            clusterwide=not self.namespace,
            namespaces=[self.namespace] if self.namespace else [],
            standalone=True,
            stop_flag=stop,
        )
        # kopf has set its own handlers.
        on_signals(stop.set)
        try:
            if kinds := await self.kinds_not_watched(tasks):
                if not stop.is_set():
                    logger.warning(
                        "watches of %s are started again: %s are not watched", self, ", ".join(kinds)
                    )
                return
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(*tasks)

    async def kinds_not_watched(self, tasks: Collection[asyncio.Task[None]]) -> list[str]:
        """Return the kinds for which kopf made no call within CONFIRM_SECONDS.

        The list is empty once all watches are open, or if kopf ends. Each request for a page of a list counts as a
        call, so that a slow API server is waited for.
        """
        started_at = time.monotonic()
        while closed := [watch for watch in self.watches if not watch.is_open]:
            calm_since = max(started_at, min(watch.called_at for watch in closed))
            patience = calm_since + CONFIRM_SECONDS - time.monotonic()
            if patience <= 0:
                return [watch.resource.plural for watch in closed if watch.called_at <= calm_since]
            ended, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if ended:
                break
        return []

    async def keep_relisting(self) -> None:
        """Relist at intervals, or when told so; return if a watch has to be opened anew.

        Raises `ApiException` if the namespace may not be read any more.
        """
        pause = self.settings.relist_seconds
        relists = 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.is_stale.wait(), pause)
            try:
                relists += 1
                kinds = ALL if relists % PODS_EVERY == 0 or self.is_stale.is_set() else ALL_BUT_PODS
                for kind, found in (await self.list_kinds(kinds)).items():
                    metrics.RELIST_FOUND.labels(kind.plural).inc(found)
                pause = self.settings.relist_seconds
                if self.is_stale.is_set():
                    self.is_stale.clear()
                    if not all(watch.is_open for watch in self.watches):
                        return
            except FAILURES as error:
                if is_missing(error):
                    raise
                logger.warning("cannot list %s, and try again: %s", self, describe(error))
                await asyncio.sleep(seconds_after(error))
                pause = 0

    async def list_kinds(self, kinds: Sequence[Resource]) -> Counter[Resource]:
        """List kinds, and queue what has changed without a watch's report; return the number of such objects by kind.

        Raises `api_errors.FAILURES`.
        """
        lister = Relist(self.cluster, self.store, self.namespace, self.pages)
        found: Counter[Resource] = Counter()
        for kind in kinds:
            async for affected in lister.run(kind):
                found[kind] += 1
                for key in affected:
                    self.queue.add(key, Priority.RELIST)
        self.listed_at = time.monotonic()
        return found


def seconds_after(error: Exception) -> float:
    """Return the seconds after a failure in which the API server is not asked for a list again."""
    return max(RETRY_SECONDS, outage_seconds(error) or 0)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def on_signals(act: Callable[[], object]) -> None:
    """Call `act` on SIGINT and SIGTERM, which only the main thread handles."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)
