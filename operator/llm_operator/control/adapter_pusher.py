"""The lists of adapters that ready replicas get over their admin API, and their progress with them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
from aiohttp import ClientTimeout

from engine_server.contract.base.quoting import shorten
from engine_server.contract.cluster.adapters import ADAPTERS_PATH, AdapterState, AdapterStates, WantedAdapters
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import ADMIN_PORT
from llm_operator.control.pod_questions import PodQuestions, pause_after
from llm_operator.observed import PodAdapters, Replica

# While adapters are being loaded.
POLL_SECONDS = 1.0
# After a failure. It doubles with each in a row.
FIRST_DELAY_SECONDS = 2.0
# A list that was reached is sent again at this interval, since others may have changed it.
REPEAT_SECONDS = 300.0
TIMEOUT = ClientTimeout(total=5, connect=2)
# In characters.
LONGEST_ERROR = 1000
# Of as many adapters as a spec may have, with the longest names, URIs and errors, in UTF-8.
LARGEST_ANSWER = 64 * (4 * (64 + 1024 + LONGEST_ERROR) + 256)
REFUSALS = {
    401: "the admin API does not accept the operator's key",
    404: "the engine's image has no adapters",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The adapters that engines of one LLMDeployment should serve, and the key of their admin API."""

    wanted: WantedAdapters
    key: str = field(repr=False)
    # False for engines of another model, which are only asked for what they serve.
    is_sent: bool = True


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
        if not self.goal.is_sent:
            return True
        served = {each.name: each.uri for each in answer.states if each.state == "ready"}
        return served == self.goal.wanted.by_name() and not answer.serves_others

    @property
    def num_settled(self) -> int:
        """The number of wanted adapters that are ready or have failed."""
        states = self.answer.states if self.answer is not None else ()
        return sum(each.state != "loading" for each in states)


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
            goals = dict.fromkeys(replicas, goal) | dict.fromkeys(others, replace(goal, is_sent=False))
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
            await self._ask(key, push, "PUT" if push.goal.is_sent else "GET")
            await self._follow_loading(key, push)
            failures = 0 if push.is_reached else failures + 1
            delay = pause_after(failures - 1, FIRST_DELAY_SECONDS) if failures else REPEAT_SECONDS
            if await is_set(push.is_changed, delay):
                failures = 0

    async def _follow_loading(self, key: Key, push: Push) -> None:
        """Ask until nothing is loading any more, less and less often while answers change without progress."""
        changes, settled, delay = 0, push.num_settled, POLL_SECONDS
        while push.is_loading and not await is_set(push.is_changed, delay):
            before = push.answer
            await self._ask(key, push, "GET")
            changes = 0 if push.num_settled > settled else changes + (push.answer != before)
            settled = max(settled, push.num_settled)
            delay = pause_after(changes, POLL_SECONDS)

    async def _ask(self, key: Key, push: Push, method: str) -> None:
        """Store the answer to a PUT with the list, or to a GET."""
        answer = await self._call(key.namespace, push, method)
        if answer != push.answer:
            push.answer = answer
            self.wake(key)

    async def _call(self, namespace: str, push: Push, method: str) -> PodAdapters:
        """Return the answer of a replica. Without one, what it served last counts."""
        last = push.answer or PodAdapters(push.replica)
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
                return last._replace(problem=problem)
            states = AdapterStates.decode(answer.body).adapters
        except ValueError as error:
            return last._replace(problem=f"the admin API does not answer: {error}")
        return kept(push, states)


def kept(push: Push, states: Sequence[AdapterState]) -> PodAdapters:
    """Return what is kept of an answer, in which a pod may have written anything: what is asked about the wanted ones.

    Of several states of one name the first is kept.
    """
    wanted = push.goal.wanted.by_name()
    found: dict[str, AdapterState] = {}
    for state in states:
        if (uri := wanted.get(state.name)) is not None and state.name not in found:
            found[state.name] = msgspec.structs.replace(
                state,
                uri=uri if state.uri == uri else "",
                error=shorten(state.error, LONGEST_ERROR) if state.error else None,
            )
    others = any(state.state == "ready" and state.name not in wanted for state in states)
    return PodAdapters(push.replica, tuple(found.values()), serves_others=others)


async def is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return False if it has not happened within `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
