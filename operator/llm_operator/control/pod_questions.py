"""Questions to pods over HTTP. Tenants choose the images, so anything may answer, or not answer at all."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar

from engine_server.contract.base.authority import authority
from engine_server.contract.base.bodies import read_at_most

TIMEOUT = ClientTimeout(total=2)
LARGEST_ANSWER = 4096
# Questions to the pods of one namespace at a time: pods that hold them delay those of their own namespace alone.
MOST_QUESTIONS = 16
# Between two questions to a pod that does not answer: a NetworkPolicy may separate it from the operator, for as long as
# it lives or until it is corrected.
LONGEST_PAUSE_SECONDS = 300.0


def pause_after(failures: int, interval: float, longest: float = LONGEST_PAUSE_SECONDS) -> float:
    """Return the seconds until the next question to a pod that has failed to answer so often in a row."""
    return min(longest, interval * 2.0 ** min(failures, 16))


class Answer(NamedTuple):
    """The status of an answer, and its body as it was sent."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class PodQuestions:
    """Asks pods, a bounded number of each namespace at once."""

    # A namespace without questions has no entry.
    places: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)

    async def ask(
        self,
        namespace: str,
        address: str,
        port: int,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limits: ClientTimeout | None = None,
        largest_answer: int = LARGEST_ANSWER,
    ) -> Answer:
        """Return the answer of a pod. Raises ValueError without one, and for one of more than `largest_answer` bytes.

        Redirects are not followed, since they would lead anywhere, and nothing is decompressed.
        """
        url = f"http://{authority(address, port)}{path}"
        identity = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            async with (
                self._place(namespace),
                ClientSession(
                    timeout=limits or TIMEOUT, auto_decompress=False, cookie_jar=DummyCookieJar()
                ) as session,
                session.request(method, url, data=body, headers=identity, allow_redirects=False) as answer,
            ):
                return Answer(answer.status, await read_at_most(largest_answer, answer.content.iter_any()))
        except (ClientError, OSError) as error:
            raise ValueError(str(error) or type(error).__name__) from None

    def _place(self, namespace: str) -> asyncio.Semaphore:
        return self.places.setdefault(namespace, asyncio.Semaphore(MOST_QUESTIONS))
