"""Questions to ready engines: the commit of the hub's repository that each has its model of."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from engine_server.contract.api import Key
from engine_server.contract.decoding import decode
from engine_server.contract.labels import ENGINE_PORT
from engine_server.contract.model_uri import COMMIT
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.observed import Replica

# Between two rounds of questions to replicas that did not answer; it doubles with each.
INTERVAL_SECONDS = 2.0
# The failures after which a replica is not asked again, as where a NetworkPolicy separates it from the operator.
MOST_FAILURES = 5


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
    # By pod; empty for one that reports none, or never answered.
    commits: dict[Key, dict[str, str]] = field(default_factory=dict)
    replicas: dict[Key, Sequence[Replica]] = field(default_factory=dict)
    tasks: dict[Key, asyncio.Task[None]] = field(default_factory=dict)

    def follow(self, key: Key, replicas: Sequence[Replica]) -> None:
        """Ask these replicas that have not been asked, and forget the answers of others."""
        pods = {replica.pod for replica in replicas}
        known = {pod: commit for pod, commit in self.commits.pop(key, {}).items() if pod in pods}
        if not replicas:
            self.replicas.pop(key, None)
            return
        self.replicas[key], self.commits[key] = replicas, known
        if pods - known.keys() and key not in self.tasks:
            self.tasks[key] = asyncio.create_task(self._ask_all(key), name=f"commits of {key}")

    async def _ask_all(self, key: Key) -> None:
        failures: Counter[str] = Counter()
        try:
            while waiting := self._unknown(key):
                for replica in waiting:
                    commit = await self._ask(key.namespace, replica)
                    failures[replica.pod] = 0 if commit is not None else failures[replica.pod] + 1
                    if failures[replica.pod] >= MOST_FAILURES:
                        commit = ""
                    if commit is not None and replica in self._unknown(key):
                        self.commits[key][replica.pod] = commit
                        if commit:
                            self.wake(key)
                if waiting := self._unknown(key):
                    await asyncio.sleep(self.interval * 2 ** min(failures[each.pod] for each in waiting))
        finally:
            del self.tasks[key]

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
