"""The lists of adapters that ready replicas get over their admin API, and their progress with them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from aiohttp import ClientTimeout

from engine_server.contract.adapters import ADAPTERS_PATH, AdapterStates, WantedAdapters
from engine_server.contract.api import Key
from engine_server.contract.labels import ADMIN_PORT
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.observed import PodAdapters, Replica

# While adapters are being loaded.
POLL_SECONDS = 1.0
# After failures in a row the delay doubles from the first to the longest.
FIRST_DELAY_SECONDS = 2.0
LONGEST_DELAY_SECONDS = 300.0
# A list that was reached is sent again at this interval, since others may have changed it.
REPEAT_SECONDS = 300.0
TIMEOUT = ClientTimeout(total=5, connect=2)
# A longer answer is not an engine's.
LARGEST_ANSWER = 1 << 20
REFUSALS = {
    401: "the admin API does not accept the operator's key",
    404: "the engine's image has no adapters",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The adapters that engines of one LLMDeployment should serve, and the key of their admin API."""

    # None for engines of another model, which are only asked for those that they serve.
    wanted: WantedAdapters | None
    key: str = field(repr=False)


@dataclass(slots=True)
class Push:
    """One replica on its way to a goal."""

    replica: Replica
    goal: Goal
    # Set when the goal is another one.
    is_changed: asyncio.Event = field(default_factory=asyncio.Event)
    answer: PodAdapters | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_loading(self) -> bool:
        answer = self.answer
        return (
            answer is not None
            and not answer.problem
            and any(each.state == "loading" for each in answer.states)
        )

    @property
    def is_reached(self) -> bool:
        answer = self.answer
        if answer is None or answer.problem:
            return False
        return (
            self.goal.wanted is None
            or {each.name: each.uri for each in answer.states if each.state == "ready"}
            == self.goal.wanted.by_name()
        )


@dataclass(slots=True)
class AdapterPusher:
    """Brings every ready replica to the adapters of its LLMDeployment, and wakes that when an answer changes.

    Each replica has a task of its own, so that one that hangs delays no other namespace's.
    """

    wake: Callable[[Key], None]
    questions: PodQuestions
    pushes: dict[Key, dict[Replica, Push]] = field(default_factory=dict)
    # None while this operator does not work.
    tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Push until cancelled."""
        try:
            async with asyncio.TaskGroup() as self.tasks:
                for key, pushes in self.pushes.items():
                    for push in pushes.values():
                        self._start(key, push)
                await asyncio.Event().wait()
        finally:
            self.tasks = None

    def follow(
        self, key: Key, goal: Goal | None, replicas: Sequence[Replica], others: Sequence[Replica] = ()
    ) -> None:
        """Bring these replicas to `goal`, and no others any more; with None, none of them.

        Replicas of another model, the `others`, are asked for what they serve and keep it.
        """
        known = self.pushes.setdefault(key, {})
        goals: dict[Replica, Goal] = {}
        if goal is not None:
            goals = dict.fromkeys(replicas, goal) | dict.fromkeys(others, Goal(None, goal.key))
        for replica in known.keys() - goals.keys():
            push = known.pop(replica)
            if push.task is not None:
                push.task.cancel()
        for replica, goal in goals.items():
            if replica not in known:
                known[replica] = Push(replica, goal)
                self._start(key, known[replica])
            elif known[replica].goal != goal:
                known[replica].goal = goal
                known[replica].is_changed.set()
        if not known:
            del self.pushes[key]

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted, or that another operator manages."""
        self.follow(key, None, ())

    def answers(self, key: Key) -> dict[str, PodAdapters]:
        """Return the last answers of the replicas of an LLMDeployment, by pod."""
        answers = [push.answer for push in self.pushes.get(key, {}).values() if push.answer is not None]
        return {answer.replica.pod: answer for answer in answers}

    def _start(self, key: Key, push: Push) -> None:
        if self.tasks is not None:
            push.task = self.tasks.create_task(
                self._keep(key, push), name=f"adapters of {key} in {push.replica.pod}"
            )

    async def _keep(self, key: Key, push: Push) -> None:
        """Send the list, follow its loading, and send it again: after failures, at an interval, or once it changes."""
        failures = 0
        while True:
            push.is_changed.clear()
            await self._ask(key, push, "GET" if push.goal.wanted is None else "PUT")
            while push.is_loading and not await is_set(push.is_changed, POLL_SECONDS):
                await self._ask(key, push, "GET")
            failures = 0 if push.is_reached else min(failures + 1, 16)
            delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (failures - 1))
            if await is_set(push.is_changed, delay if failures else REPEAT_SECONDS):
                failures = 0

    async def _ask(self, key: Key, push: Push, method: str) -> None:
        """Store the answer to a PUT with the list, or to a GET."""
        answer = await self._call(key.namespace, push, method)
        if answer != push.answer:
            push.answer = answer
            self.wake(key)

    async def _call(self, namespace: str, push: Push, method: str) -> PodAdapters:
        """Return the answer of a replica. Without one, what it served last counts."""
        last = push.answer.states if push.answer is not None else ()
        try:
            answer = await self.questions.ask(
                namespace,
                push.replica.address,
                ADMIN_PORT,
                ADAPTERS_PATH,
                method=method,
                body=msgspec.json.encode(push.goal.wanted) if method == "PUT" else None,
                headers={"Authorization": f"Bearer {push.goal.key}", "Content-Type": "application/json"},
                limits=TIMEOUT,
                largest_answer=LARGEST_ANSWER,
            )
            if answer.status != 200:
                problem = REFUSALS.get(answer.status, f"the admin API answers {answer.status}")
                return PodAdapters(push.replica, last, problem)
            states = AdapterStates.decode(answer.body).adapters
        except ValueError as error:
            return PodAdapters(push.replica, last, f"the admin API does not answer: {error}")
        return PodAdapters(push.replica, tuple(states))


async def is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return False if it has not happened within `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
