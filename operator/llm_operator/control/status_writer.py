"""The writes of status: at most one in an interval for each object, of what was assessed last."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_server.contract.cluster.api import Key
from llm_operator.api.status import Status
from llm_operator.control.cluster import Cluster
from llm_operator.control.events import Events
from llm_operator.control.watching.store import Store
from llm_operator.control.watching.trim import trimmed
from llm_operator.kinds import LLMDEPLOYMENTS
from llm_operator.observed import Manifest, Observed
from llm_operator.status.news import news


@dataclass(slots=True)
class StatusWriter:
    """Writes changed statuses, and the events of their changes."""

    cluster: Cluster
    store: Store
    events: Events
    # Called with an object that was edited meanwhile. The store has the edit with our write's answer, so the watch's
    # report of it wakes nobody.
    wake: Callable[[Key], None]
    # In seconds.
    interval: float = 0.2
    # The times of the last writes, by the monotonic clock.
    written: dict[Key, float] = field(default_factory=dict)

    async def write(self, key: Key, observed: Observed, status: Status) -> float | None:
        """Write a status that differs from the reported one. An equal one is not written: a write wakes us again.

        If the last write is too recent, nothing is written, and the seconds are returned after which to assess again.

        Raises ApiException with status 422 if the object was deleted and another one has its name.
        """
        reported = status.as_manifest()
        if reported == observed.reported:
            return None
        now = time.monotonic()
        if key in self.written and (wait := self.written[key] + self.interval - now) > 0:
            return wait
        self.written[key] = now
        written = await self.cluster.report(key, observed.subject["metadata"]["uid"], reported)
        self.store.put(LLMDEPLOYMENTS, written)
        if without_status(trimmed(LLMDEPLOYMENTS, written)) != without_status(observed.subject):
            self.wake(key)
        await self.events.record(observed.subject, news(status, observed.reported), observed.now)
        return None

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted."""
        self.written.pop(key, None)
        self.events.forget(key)


def without_status(manifest: Manifest) -> Manifest:
    return {name: value for name, value in manifest.items() if name != "status"}
