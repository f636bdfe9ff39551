"""Questions to the API server for the Warnings about pods whose containers their nodes do not create."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from engine_server.contract.cluster.api import Key
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.control.warnings import warnings_about
from llm_operator.observed import Manifest, Warned

# Containers are created sooner, unless their image is pulled, which is not waited for here.
PATIENCE_SECONDS = 20.0
# Between two questions about a pod, which grows with the time that it has waited.
INTERVAL_SECONDS = 20.0
LONGEST_SECONDS = 60.0
# Of one LLMDeployment.
MOST_PODS = 3
# Questions at a time over all, of which one namespace has one, and the rest after each. To answer one the API server
# reads all Events of a namespace.
MOST_QUESTIONS = 4
REST_SECONDS = 0.5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WarningPoller:
    """Asks about the newest such pods of each LLMDeployment, and wakes it when the answer changes."""

    wake: Callable[[Key], None]
    cluster: Cluster
    # By the pods' UIDs, in a stable order.
    warnings: dict[Key, dict[str, tuple[Warned, ...]]] = field(default_factory=dict)
    pods: dict[Key, Mapping[str, Manifest]] = field(default_factory=dict)
    tasks: dict[Key, asyncio.Task[None]] = field(default_factory=dict)
    # Ends the pause of a task.
    changed: dict[Key, asyncio.Event] = field(default_factory=dict)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_QUESTIONS))
    # A namespace without questions has no entry.
    turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def follow(self, key: Key, pods: Sequence[Manifest]) -> None:
        """Ask about these pods from now on, and forget the answers about others."""
        newest = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))[-MOST_PODS:]
        wanted = {str(pod["metadata"]["uid"]): pod for pod in newest}
        before = self.pods.pop(key, {})
        found = self.warnings.pop(key, {})
        if wanted:
            self.pods[key] = wanted
            self.warnings[key] = {uid: warned for uid, warned in found.items() if uid in wanted}
        if key not in self.tasks and wanted:
            self.changed[key] = asyncio.Event()
            self.tasks[key] = asyncio.create_task(self._poll(key), name=f"warnings about {key}")
        elif key in self.tasks and wanted.keys() != before.keys():
            self.changed[key].set()

    async def _poll(self, key: Key) -> None:
        loop, changed = asyncio.get_running_loop(), self.changed[key]
        since: dict[str, float] = {}
        due: dict[str, float] = {}
        try:
            while pods := self.pods.get(key):
                changed.clear()
                for uid in pods.keys() - since.keys():
                    since[uid] = loop.time()
                    due[uid] = since[uid] + PATIENCE_SECONDS
                for uid in since.keys() - pods.keys():
                    del since[uid], due[uid]
                for uid in [uid for uid in pods if due[uid] <= loop.time()]:
                    await self._ask(key, uid, pods[uid])
                    due[uid] = loop.time() + interval_after(loop.time() - since[uid])
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(0.0, min(due.values()) - loop.time()))
        finally:
            del self.tasks[key], self.changed[key]

    async def _ask(self, key: Key, uid: str, pod: Manifest) -> None:
        turn = self.turns.setdefault(key.namespace, asyncio.Lock())
        async with turn, self.places:
            if uid not in self.pods.get(key, {}):
                return
            try:
                warned = await warnings_about(self.cluster, key.namespace, [pod])
            except FAILURES as error:
                logger.warning("%s: the Events about its pods: %s", key, describe(error))
                return
            finally:
                await asyncio.sleep(REST_SECONDS)
        known = self.warnings.get(key)
        if known is not None and uid in self.pods[key] and known.get(uid, ()) != tuple(sorted(warned)):
            known[uid] = tuple(sorted(warned))
            self.wake(key)


def interval_after(seconds: float) -> float:
    """Return the seconds until the next question about a pod that has waited for so long."""
    return min(LONGEST_SECONDS, max(INTERVAL_SECONDS, seconds / 10))
