"""Questions to ready engines: the commit of the hub's repository that each has its model of."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from engine_server.contract.base.decoding import decode
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import ENGINE_PORT
from engine_server.contract.cluster.sources.hub import COMMIT
from llm_operator.control.pod_questions import PodQuestions, pause_after
from llm_operator.observed import Replica

# Between two rounds of questions to replicas that did not answer; it doubles with each.
INTERVAL_SECONDS = 2.0


class Readiness(msgspec.Struct, frozen=True):
    """The answer of an engine's /ready. An engine whose model is of no hub reports no commit."""

    commit: Annotated[str, Meta(pattern=f"^({COMMIT})?$")] = ""


decoder = msgspec.json.Decoder(Readiness)


@dataclass(slots=True)
class CommitPoller:
    """Asks each replica once, those of one LLMDeployment in turn, and wakes it when one reports a commit."""

    wake: Callable[[Key], None]
    questions: PodQuestions
    interval: float = INTERVAL_SECONDS
    # By pod; empty for one that reports none.
    commits: dict[Key, dict[str, str]] = field(default_factory=dict)
    replicas: dict[Key, Sequence[Replica]] = field(default_factory=dict)
    tasks: dict[Key, asyncio.Task[None]] = field(default_factory=dict)
    # Ends the pause of a task.
    changed: dict[Key, asyncio.Event] = field(default_factory=dict)

    def follow(self, key: Key, replicas: Sequence[Replica]) -> None:
        """Ask these replicas that have not been asked, and forget the answers of others."""
        pods = {replica.pod for replica in replicas}
        known = {pod: commit for pod, commit in self.commits.pop(key, {}).items() if pod in pods}
        followed = {replica.pod for replica in self.replicas.pop(key, ())}
        if replicas:
            self.replicas[key], self.commits[key] = replicas, known
        if key in self.tasks:
            if not replicas or pods - followed:
                self.changed[key].set()
        elif pods - known.keys():
            self.changed[key] = asyncio.Event()
            self.tasks[key] = asyncio.create_task(self._ask_all(key), name=f"commits of {key}")

    async def _ask_all(self, key: Key) -> None:
        failures: Counter[str] = Counter()
        changed = self.changed[key]
        try:
            while waiting := self._unknown(key):
                changed.clear()
                for replica in waiting:
                    commit = await self._ask(key.namespace, replica)
                    failures[replica.pod] += commit is None
                    if commit is not None and replica in self._unknown(key):
                        self.commits[key][replica.pod] = commit
                        if commit:
                            self.wake(key)
                if waiting := self._unknown(key):
                    pause = pause_after(min(failures[each.pod] for each in waiting), self.interval)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), pause)
        finally:
            del self.tasks[key], self.changed[key]

    def _unknown(self, key: Key) -> list[Replica]:
        known = self.commits.get(key, {})
        return [replica for replica in self.replicas.get(key, ()) if replica.pod not in known]

    async def _ask(self, namespace: str, replica: Replica) -> str | None:
        """Return the commit that a replica reports, empty if it reports none; None without an answer."""
        try:
            answer = await self.questions.ask(namespace, replica.address, ENGINE_PORT, "/ready")
            return decode(decoder.decode, answer.body).commit if answer.status == 200 else None
        except ValueError:
            return None
