"""The settings of kopf: it lists and watches, without end, and does nothing else."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import kopf
from kopf._cogs.clients import watching

from llm_operator.control.cluster import REQUEST_SECONDS
from llm_operator.control.watching.pages import KOPF_PAGE_SIZE

CONNECT_SECONDS = 5
RETRY_SECONDS = 1.0


class EndlessRetries(Iterable[float]):
    """The pauses between the attempts of a call. After a last attempt kopf would end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(RETRY_SECONDS)


class NothingToCompare(kopf.DiffBaseStorage):
    """Keep no former states of objects. kopf would copy each object at each event to find what has changed in it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Do nothing."""


def never_paused(**_: Any) -> nullcontext[asyncio.Future[None]]:
    """Return the context of a watch that kopf never pauses: it would for another operator, of which it knows none.

    kopf's own context is a generator inside that of the watch. When a watch stops amid a list, both are left to the
    garbage collector or to the event loop's end, and an error is logged if the inner one is closed first.
    """
    return nullcontext(asyncio.get_running_loop().create_future())


watching.streaming_block = never_paused  # type: ignore[assignment]


def choose(settings: kopf.OperatorSettings, watch_silence_seconds: float) -> None:
    """Choose kopf's settings; a watch that is silent for so long is opened anew."""
    # Our Lease elects the operator that works.
    settings.peering.standalone = True
    # Namespaces and definitions are not watched, since that needs cluster-wide rights.
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NothingToCompare()
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = EndlessRetries()
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = watch_silence_seconds
    # Handlers do not block; a part of kopf that is started again must not end the process.
    settings.process.ultimate_exiting_timeout = None
    # A worker that waits for more events keeps its last object in memory.
    settings.queueing.idle_timeout = 0.1
    settings.watching.chunk_size = KOPF_PAGE_SIZE
