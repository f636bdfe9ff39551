"""Questions to engines that start: their phase, and how much of the model they have loaded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Percent, Seconds, Word
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import ENGINE_PORT
from llm_operator.control.follower import Follower
from llm_operator.control.pod_questions import PodQuestions, pause_after
from llm_operator.observed import Replica, StartReport

# It doubles with each failure in a row.
INTERVAL_SECONDS = 2.0


class Readiness(msgspec.Struct, frozen=True):
    """The answer of an engine's /ready. One that is ready has neither phase nor percent."""

    status: Word
    phase: Word = ""
    percent: Percent = 0
    seconds: dict[Word, Seconds] = {}


decoder = msgspec.json.Decoder(Readiness)


@dataclass(slots=True)
class StartPoller:
    """Asks one replica of each LLMDeployment that starts, and wakes it when the answer changes."""

    wake: Callable[[Key], None]
    questions: PodQuestions
    interval: float = INTERVAL_SECONDS
    reports: dict[Key, StartReport] = field(default_factory=dict)
    follower: Follower[Replica] = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(self._poll)

    def follow(self, key: Key, replica: Replica | None) -> None:
        """Ask `replica` from now on until it serves; with None, nobody."""
        self.follower.follow(key, [replica] if replica is not None else [])

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted, or is another operator's."""
        self.follow(key, None)
        self.reports.pop(key, None)

    async def _poll(self, key: Key, replica: Replica) -> None:
        failures = 0
        while True:
            report = await self._ask(key.namespace, replica)
            if report is not None and report != self.reports.get(key):
                self.reports[key] = report
                self.wake(key)
            failures = 0 if report is not None else failures + 1
            await asyncio.sleep(pause_after(failures, self.interval))

    async def _ask(self, namespace: str, replica: Replica) -> StartReport | None:
        """Return the report of a replica, None without an answer."""
        try:
            answer = await self.questions.ask(namespace, replica.address, ENGINE_PORT, "/ready")
            readiness = decode(decoder.decode, answer.body)
        except ValueError:
            return None
        is_final = readiness.status == "ready"
        return StartReport(replica, readiness.phase, readiness.percent, readiness.seconds, is_final)
