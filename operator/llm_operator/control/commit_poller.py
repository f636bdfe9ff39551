"""Questions to ready engines: the commit of the hub's repository that each has its model of."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from engine_server.contract.base.decoding import decode
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import ENGINE_PORT
from engine_server.contract.cluster.sources.hub import COMMIT
from llm_operator.control.follower import Follower
from llm_operator.control.pod_questions import PodQuestions, pause_after
from llm_operator.observed import Replica

# Between two questions to a replica that did not answer; it doubles with each.
INTERVAL_SECONDS = 2.0


class Readiness(msgspec.Struct, frozen=True):
    """The answer of an engine's /ready. An engine whose model is of no hub reports no commit."""

    commit: Annotated[str, Meta(pattern=f"^({COMMIT})?$")] = ""


decoder = msgspec.json.Decoder(Readiness)


@dataclass(slots=True)
class CommitPoller:
    """Asks each replica until it answers once, and wakes its LLMDeployment when it reports a commit."""

    wake: Callable[[Key], None]
    questions: PodQuestions
    interval: float = INTERVAL_SECONDS
    # By pod; empty for one that reports none.
    commits: dict[Key, dict[str, str]] = field(default_factory=dict)
    follower: Follower[Replica] = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(self._poll)

    def follow(self, key: Key, replicas: Sequence[Replica]) -> None:
        """Ask these replicas that have not been asked, and forget the answers of others."""
        pods = {replica.pod for replica in replicas}
        known = {pod: commit for pod, commit in self.commits.pop(key, {}).items() if pod in pods}
        if replicas:
            self.commits[key] = known
        self.follower.follow(key, [replica for replica in replicas if replica.pod not in known])

    async def _poll(self, key: Key, replica: Replica) -> None:
        failures = 0
        while (commit := await self._ask(key.namespace, replica)) is None:
            failures += 1
            await asyncio.sleep(pause_after(failures, self.interval))
        self.commits[key][replica.pod] = commit
        if commit:
            self.wake(key)

    async def _ask(self, namespace: str, replica: Replica) -> str | None:
        """Return the commit that a replica reports, empty if it reports none; None without an answer."""
        try:
            answer = await self.questions.ask(namespace, replica.address, ENGINE_PORT, "/ready")
            return decode(decoder.decode, answer.body).commit if answer.status == 200 else None
        except ValueError:
            return None
