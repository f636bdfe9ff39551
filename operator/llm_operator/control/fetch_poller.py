"""Questions to the pods that download models: how much they have."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Total
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.fetch_container import PROGRESS_PATH
from engine_server.contract.cluster.labels import ENGINE_PORT
from llm_operator.control.follower import Follower
from llm_operator.control.pod_questions import PodQuestions, pause_after

INTERVAL_SECONDS = 2.0
# It doubles while nobody answers, up to the longest.
LONGEST_SECONDS = 30.0


class FetchProgress(msgspec.Struct, frozen=True):
    """The answer of a container that fetches, in bytes."""

    done: Total = 0
    total: Total = 0


decoder = msgspec.json.Decoder(FetchProgress)


@dataclass(slots=True)
class FetchPoller:
    """Asks the pods of each LLMDeployment that waits for a download."""

    questions: PodQuestions
    interval: float = INTERVAL_SECONDS
    # The last answer; none while no pod answers.
    progress: dict[Key, FetchProgress] = field(default_factory=dict)
    # By the addresses of the pods.
    follower: Follower[tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(self._poll)

    def follow(self, key: Key, addresses: tuple[str, ...]) -> None:
        """Ask the pods at these addresses from now on; without any, nobody."""
        if not addresses:
            self.progress.pop(key, None)
        self.follower.follow(key, [addresses] if addresses else [])

    async def _poll(self, key: Key, addresses: tuple[str, ...]) -> None:
        silences = 0
        while True:
            progress = await self._ask(key.namespace, addresses)
            if progress is None:
                silences += 1
                self.progress.pop(key, None)
            else:
                silences = 0
                self.progress[key] = progress
            await asyncio.sleep(pause_after(silences, self.interval, LONGEST_SECONDS))

    async def _ask(self, namespace: str, addresses: tuple[str, ...]) -> FetchProgress | None:
        """Return the progress of the first pod that reports it."""
        for address in addresses:
            try:
                answer = await self.questions.ask(namespace, address, ENGINE_PORT, PROGRESS_PATH)
                if answer.status == 200:
                    return decode(decoder.decode, answer.body)
            except ValueError:
                continue
        return None
