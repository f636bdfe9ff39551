"""Events of type Warning about objects. Whoever may write Events chooses their number, their size and their content."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from engine_server.contract.base.nesting import decode_shallow
from engine_server.contract.cluster.page_size import AnswerTooLargeError
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import EVENTS
from llm_operator.observed import Manifest, Warned
from llm_operator.status.messages import bounded

# Of one object.
MOST_READ = 50
MOST_KEPT = 5
LARGEST_ANSWER = 1 << 20
# What lasts is repeated within this time: the kubelet writes no more than one Event in 5 minutes about a pod that has
# had many. Older ones are about what has passed.
RECENT = timedelta(minutes=6)

logger = logging.getLogger(__name__)


class Subject(NamedTuple):
    """An object that Events may be about."""

    name: str
    uid: str

    @classmethod
    def of(cls, manifest: Manifest) -> "Subject":
        return cls(manifest["metadata"]["name"], manifest["metadata"]["uid"])


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an Event that is read."""

    reason: str | None = None
    message: str | None = None
    # As RFC 3339 allows it; the scheduler's Events have the second alone.
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def time(self) -> float:
        moment = self.last_timestamp or self.event_time
        return moment.timestamp() if moment else 0.0


class EventList(msgspec.Struct, frozen=True):
    items: tuple[Event, ...] | None = None


decoder = msgspec.json.Decoder(EventList)


async def warnings_about(cluster: Cluster, namespace: str, subjects: Iterable[Subject]) -> tuple[Warned, ...]:
    """Return the recent Warnings about these objects, the newest last."""
    found = await asyncio.gather(*(events_about(cluster, namespace, subject) for subject in subjects))
    events = sorted((event for each in found for event in each), key=lambda event: event.time)
    warned = (Warned(event.reason or "", bounded(event.message or "")) for event in events)
    return tuple(dict.fromkeys(warned))


async def events_about(cluster: Cluster, namespace: str, subject: Subject) -> list[Event]:
    """Return the last Warnings about an object; none if they are too large to be the cluster's own."""
    selector = f"type=Warning,involvedObject.uid={subject.uid}"
    query = {"fieldSelector": selector, "limit": str(MOST_READ)}
    try:
        answer = await cluster.request("GET", EVENTS.path(namespace), query=query, largest=LARGEST_ANSWER)
        listed = decode_shallow(decoder.decode, answer).items or ()
    except (AnswerTooLargeError, msgspec.MsgspecError) as error:
        logger.warning("the Events about %s/%s: %s", namespace, subject.name, error)
        return []
    newest = max((event.time for event in listed), default=0.0)
    recent = [event for event in listed if event.time >= newest - RECENT.total_seconds()]
    return sorted(recent, key=lambda event: event.time)[-MOST_KEPT:]
