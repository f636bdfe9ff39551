"""Questions to engines that start: their phase, and how much of the model they have loaded."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Percent, Seconds, Word
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import ENGINE_PORT
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
    replicas: dict[Key, Replica] = field(default_factory=dict)
    tasks: dict[Key, asyncio.Task[None]] = field(default_factory=dict)
    # Ends the pause of a task.
    changed: dict[Key, asyncio.Event] = field(default_factory=dict)

    def follow(self, key: Key, replica: Replica | None) -> None:
        """Ask `replica` from now on until it serves; with None, nobody."""
        before = self.replicas.pop(key, None)
        if replica is not None:
            self.replicas[key] = replica
        if key in self.tasks:
            if replica != before:
                self.changed[key].set()
        elif replica is not None:
            self.changed[key] = asyncio.Event()
            self.tasks[key] = asyncio.create_task(self._poll(key), name=f"start of {key}")

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted, or is another operator's."""
        self.follow(key, None)
        self.reports.pop(key, None)

    async def _poll(self, key: Key) -> None:
        asked, failures = None, 0
        changed = self.changed[key]
        try:
            while replica := self.replicas.get(key):
                changed.clear()
                report = await self._ask(key.namespace, replica)
                if replica != asked:
                    asked, failures = replica, 0
                failures = 0 if report else failures + 1
                if report is not None and report != self.reports.get(key) and key in self.replicas:
                    self.reports[key] = report
                    self.wake(key)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause_after(failures, self.interval))
        finally:
            del self.tasks[key], self.changed[key]

    async def _ask(self, namespace: str, replica: Replica) -> StartReport | None:
        """Return the report of a replica, None without an answer."""
        try:
            answer = await self.questions.ask(namespace, replica.address, ENGINE_PORT, "/ready")
            readiness = decode(decoder.decode, answer.body)
        except ValueError:
            return None
        is_final = readiness.status == "ready"
        return StartReport(replica, readiness.phase, readiness.percent, readiness.seconds, is_final)
