"""Events of LLMDeployments, which `kubectl describe` shows: one for each reason, which counts up."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubernetes.aio.client import ApiException

from engine_server.contract.cluster import api
from engine_server.contract.cluster.api import Key
from llm_operator.api.spec_hash import digest
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import EVENTS
from llm_operator.observed import Manifest, timestamp
from llm_operator.status.news import News

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """The occurrences of one reason: those that its Event counts, and those since the last write of the Event."""

    counted: int
    written: datetime
    uncounted: int = 0


@dataclass(slots=True)
class Events:
    """Writes each Event at most once in an interval, also across restarts: the Event itself has the last time."""

    cluster: Cluster
    interval: timedelta = timedelta(minutes=10)
    tallies: dict[Key, dict[str, Tally]] = field(default_factory=dict)

    async def record(self, subject: Manifest, found: Iterable[News], now: datetime) -> None:
        """Count `found` in the Events of `subject`. A failure is logged: an Event never delays a reconcile."""
        for item in found:
            try:
                await self._count(subject, item, now)
            except FAILURES as error:
                logger.warning("%s: event %s: %s", Key.of(subject), item.reason, describe(error))

    def forget(self, key: Key) -> None:
        """Forget the Events of an LLMDeployment that was deleted."""
        self.tallies.pop(key, None)

    async def _count(self, subject: Manifest, item: News, now: datetime) -> None:
        tallies = self.tallies.setdefault(Key.of(subject), {})
        name = event_name(subject, item)
        if name not in tallies:
            existing = await self._create(name, subject, item, now)
            if existing is None:
                tallies[name] = Tally(1, now)
                return
            tallies[name] = Tally(existing["count"], datetime.fromisoformat(existing["lastTimestamp"]))
        tally = tallies[name]
        tally.uncounted += 1
        if now - tally.written < self.interval:
            return
        count = tally.counted + tally.uncounted
        change = {"message": item.message, "lastTimestamp": timestamp(now), "count": count}
        if await self._patch(subject, name, change) is None:  # it has expired
            await self._create(name, subject, item, now)
            count = 1
        tallies[name] = Tally(count, now)

    async def _create(self, name: str, subject: Manifest, item: News, now: datetime) -> Manifest | None:
        """Create the Event; return the one that exists already, if there is one."""
        about = {key: subject["metadata"][key] for key in ("name", "namespace", "uid")}
        event = {
            "metadata": {"name": name, "namespace": about["namespace"]},
            "involvedObject": {"apiVersion": api.API_VERSION, "kind": api.KIND, **about},
            "type": item.severity,
            "reason": item.reason,
            "message": item.message,
            "source": {"component": "fairlead-operator"},
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "count": 1,
        }
        try:
            await self.cluster.call("POST", EVENTS.path(about["namespace"]), event)
        except ApiException as error:
            if error.status == 409:
                # A patch without changes reads the Event without the right to get it.
                return await self._patch(subject, name, {})
            raise
        return None

    async def _patch(self, subject: Manifest, name: str, change: Manifest) -> Manifest | None:
        """Patch the Event and return it; None if there is none."""
        path = EVENTS.path(subject["metadata"]["namespace"], name)
        try:
            return await self.cluster.patch(path, change)
        except ApiException as error:
            if error.status == 404:
                return None
            raise


def event_name(subject: Manifest, item: News) -> str:
    """Return the one name of the Event for this reason and object."""
    identity = f"{subject['metadata']['uid']} {item.severity} {item.reason}"
    return f"{subject['metadata']['name']}.{digest(identity.encode())}"
