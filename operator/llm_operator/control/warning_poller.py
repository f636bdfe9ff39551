"""Questions to the API server for the Warnings about pods whose containers their nodes do not create."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from engine_server.contract.cluster.api import Key
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.control.follower import Follower
from llm_operator.control.warnings import Subject, warnings_about
from llm_operator.observed import Manifest, Warned

# Containers are created sooner, unless their image is pulled, which is not waited for here.
PATIENCE_SECONDS = 20.0
# Between two questions about a pod, which grows with the time that it has waited.
INTERVAL_SECONDS = 20.0
LONGEST_SECONDS = 60.0
# Of one LLMDeployment.
MOST_PODS = 3
# Questions at a time over all, of which one namespace has one, and the rest before each. To answer one the API server
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
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_QUESTIONS))
    # A namespace without questions has no entry.
    turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    follower: Follower[Subject] = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(self._poll)

    def follow(self, key: Key, pods: Sequence[Manifest]) -> None:
        """Ask about these pods from now on, and forget the answers about others."""
        newest = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))[-MOST_PODS:]
        subjects = [Subject.of(pod) for pod in newest]
        found = self.warnings.pop(key, {})
        if subjects:
            self.warnings[key] = {pod.uid: found[pod.uid] for pod in subjects if pod.uid in found}
        self.follower.follow(key, subjects)

    async def _poll(self, key: Key, pod: Subject) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        await asyncio.sleep(PATIENCE_SECONDS)
        while True:
            await self._ask(key, pod)
            await asyncio.sleep(interval_after(loop.time() - since))

    async def _ask(self, key: Key, pod: Subject) -> None:
        turn = self.turns.setdefault(key.namespace, asyncio.Lock())
        async with turn, self.places:
            await asyncio.sleep(REST_SECONDS)
            try:
                warned = await warnings_about(self.cluster, key.namespace, [pod])
            except FAILURES as error:
                logger.warning("%s: the Events about its pods: %s", key, describe(error))
                return
        known = self.warnings[key]
        if known.get(pod.uid, ()) != tuple(sorted(warned)):
            known[pod.uid] = tuple(sorted(warned))
            self.wake(key)


def interval_after(seconds: float) -> float:
    """Return the seconds until the next question about a pod that has waited for so long."""
    return min(LONGEST_SECONDS, max(INTERVAL_SECONDS, seconds / 10))
