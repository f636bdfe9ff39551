"""Tasks that ask, one for each subject that LLMDeployments have: a replica, a pod, or a download."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from engine_server.contract.cluster.api import Key

# After an error of the operator's own in a question.
RETRY_SECONDS = 60.0

logger = logging.getLogger(__name__)

Subject = TypeVar("Subject", bound=Hashable)


@dataclass(slots=True)
class Follower(Generic[Subject]):
    """Asks about each subject of an LLMDeployment for as long as it has it, in a task that delays no other."""

    # Ends once it is answered. It is cancelled as soon as the subject is gone.
    ask: Callable[[Key, Subject], Coroutine[Any, Any, None]]
    # Without an entry for an LLMDeployment that has no subjects; those of answered questions are kept.
    tasks: dict[Key, dict[Subject, asyncio.Task[None]]] = field(default_factory=dict)

    def follow(self, key: Key, subjects: Collection[Subject]) -> None:
        """Ask about these subjects from now on, and about no others any more."""
        known = self.tasks.pop(key, {})
        for gone in known.keys() - set(subjects):
            known[gone].cancel()
        if subjects:
            self.tasks[key] = {
                each: known.get(each) or asyncio.create_task(self._ask(key, each), name=f"question of {key}")
                for each in subjects
            }

    async def _ask(self, key: Key, subject: Subject) -> None:
        while True:
            try:
                return await self.ask(key, subject)
            except Exception:
                logger.exception("%s: a question failed; it is asked again in %g s", key, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
