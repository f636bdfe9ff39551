"""Lists of adapters for replicas, over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from llm_operator.control import adapter_pusher
from llm_operator.control.adapter_pusher import AdapterPusher, Goal
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.observed import Replica
from waiting import until_async

from engine_server.contract.cluster.adapters import AdapterState, AdapterStates, WantedAdapter, WantedAdapters
from engine_server.contract.cluster.api import Key

KEY = Key("default", "m")
# Engines listen on one port, so each process that runs the tests has loopback addresses of its own.
NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
ONE, OTHER, NOBODY = (
    Replica(f"p{host}", "2026-01-01T00:00:00Z", f"{NETWORK}.{host}") for host in (71, 72, 73)
)


def goal(key: str = "secret", **uris: str) -> Goal:
    return Goal(WantedAdapters([WantedAdapter(*item) for item in uris.items()]), key)


class Engine:
    """The admin API of an engine that loads adapters when the test says so."""

    def __init__(self) -> None:
        self.wanted: dict[str, str] = {}
        # By URI: loading, or why it fails; others are ready.
        self.loading: set[str] = set()
        self.broken: dict[str, str] = {}
        self.calls: list[str] = []
        self.hangs = False
        # States beside those of the wanted adapters.
        self.extra: list[AdapterState] = []
        # The hash of what is being loaded changes with each answer.
        self.restless = False
        self.key = "secret"

    async def handle(self, request: web.Request) -> web.Response:
        self.calls.append(request.method)
        if self.hangs:
            await asyncio.Event().wait()
        if request.headers["Authorization"] != f"Bearer {self.key}":
            return web.Response(status=401)
        if request.method == "PUT":
            self.wanted = msgspec.json.decode(await request.read(), type=WantedAdapters).by_name()
        states = AdapterStates([*self.extra, *(self.state(*item) for item in self.wanted.items())])
        return web.Response(body=msgspec.json.encode(states))

    def state(self, name: str, uri: str) -> AdapterState:
        if uri in self.broken:
            return AdapterState(name, uri, "failed", None, self.broken[uri])
        if uri in self.loading:
            return AdapterState(name, uri, "loading", str(len(self.calls)) if self.restless else None)
        return AdapterState(name, uri, "ready", f"hash of {uri}")


async def listening(replica: Replica) -> tuple[Engine, web.AppRunner]:
    engine = Engine()
    application = web.Application()
    application.router.add_route("*", "/adapters", engine.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, replica.address, 8001).start()
    return engine, runner


@pytest.fixture
async def engines() -> AsyncIterator[dict[Replica, Engine]]:
    started = {replica: await listening(replica) for replica in (ONE, OTHER)}
    yield {replica: engine for replica, (engine, _) in started.items()}
    for _, runner in started.values():
        await runner.cleanup()


@pytest.fixture
async def pusher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdapterPusher]:
    """A pusher that works, with short delays; `woken` counts."""
    for name in ("POLL_SECONDS", "FIRST_DELAY_SECONDS"):
        monkeypatch.setattr(adapter_pusher, name, 0.01)
    pusher = AdapterPusher(lambda _: None, PodQuestions())
    running = asyncio.create_task(pusher.run())
    await until_async(lambda: pusher.tasks is not None)
    yield pusher
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def states(pusher: AdapterPusher, replica: Replica) -> dict[str, str]:
    """Return the states of a replica's adapters as the pusher knows them."""
    answer = pusher.answers(KEY).get(replica.pod)
    return {each.name: each.state for each in answer.states} if answer else {}


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("adapters of")}


async def test_every_replica_gets_the_list_and_each_change_wakes_the_llmdeployment(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    woken: list[Key] = []
    pusher.wake = woken.append
    engines[OTHER].loading.add("u")

    pusher.follow(KEY, goal(x="u"), (ONE, OTHER))

    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
    await until_async(lambda: states(pusher, OTHER) == {"x": "loading"})
    engines[OTHER].loading.clear()
    await until_async(lambda: states(pusher, OTHER) == {"x": "ready"})
    assert woken == [KEY] * 3
    assert engines[OTHER].calls.count("PUT") == 1


async def test_another_list_is_sent_at_once(pusher: AdapterPusher, engines: dict[Replica, Engine]) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})

    pusher.follow(KEY, goal(y="v"), (ONE,))

    await until_async(lambda: states(pusher, ONE) == {"y": "ready"})
    assert engines[ONE].wanted == {"y": "v"}


async def test_replicas_of_another_model_get_no_list_and_report_what_they_serve(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE, OTHER))
    await until_async(lambda: states(pusher, ONE) == states(pusher, OTHER) == {"x": "ready"})

    pusher.follow(KEY, goal(x="u", y="v"), (ONE,), (OTHER,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready", "y": "ready"})
    await until_async(lambda: "GET" in engines[OTHER].calls)

    assert engines[OTHER].calls.count("PUT") == 1
    assert states(pusher, OTHER) == {"x": "ready"}


async def test_the_same_list_is_not_sent_again(pusher: AdapterPusher, engines: dict[Replica, Engine]) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
    pusher.follow(KEY, goal(x="u"), (ONE, OTHER))
    await until_async(lambda: states(pusher, OTHER) == {"x": "ready"})

    assert engines[ONE].calls == ["PUT"]


async def test_a_failed_adapter_is_tried_again(pusher: AdapterPusher, engines: dict[Replica, Engine]) -> None:
    engines[ONE].broken["u"] = "no folder at u"
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "failed"})
    assert pusher.answers(KEY)["p71"].states[0].error == "no folder at u"

    engines[ONE].broken.clear()

    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})


async def test_delays_after_failures_grow_and_have_a_limit(
    pusher: AdapterPusher, engines: dict[Replica, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def is_set(event: asyncio.Event, seconds: float) -> bool:
        waits.append(seconds)
        await asyncio.Event().wait() if len(waits) == 6 else await asyncio.sleep(0)
        return False

    monkeypatch.setattr(adapter_pusher, "is_set", is_set)
    monkeypatch.setattr(adapter_pusher, "FIRST_DELAY_SECONDS", 30.0)
    engines[ONE].broken["u"] = "no"
    pusher.follow(KEY, goal(x="u"), (ONE,))

    await until_async(lambda: len(waits) == 6)
    assert waits == [30, 60, 120, 240, 300, 300]


async def test_a_replica_that_hangs_or_is_gone_delays_no_other(
    pusher: AdapterPusher, engines: dict[Replica, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_pusher, "TIMEOUT", adapter_pusher.ClientTimeout(total=0.2))
    engines[ONE].hangs = True
    pusher.follow(KEY, goal(x="u"), (ONE, NOBODY, OTHER))
    pusher.follow(Key("default", "other"), goal(y="v"), (OTHER._replace(pod="q"),))

    await until_async(lambda: len(pusher.answers(KEY)) == 3)
    # On a busy machine its first answer may be late, too.
    await until_async(lambda: pusher.answers(KEY)["p72"].problem == "")
    problems = {pod: answer.problem for pod, answer in pusher.answers(KEY).items()}
    assert all(problems[pod].startswith("the admin API does not answer") for pod in ("p71", "p73"))

    engines[ONE].hangs = False
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})


async def test_a_replica_that_stops_answering_counts_with_what_it_served_last(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
    engines[ONE].key = "another"

    pusher.follow(KEY, goal(x="v"), (ONE,))

    await until_async(lambda: pusher.answers(KEY)["p71"].problem != "")
    assert pusher.answers(KEY)["p71"].problem == "the admin API does not accept the operator's key"
    assert states(pusher, ONE) == {"x": "ready"}


async def test_a_replica_that_restarts_gets_its_list_again(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
    engines[ONE].wanted = {}
    restarted = ONE._replace(started_at="2026-01-01T01:00:00Z")

    pusher.follow(KEY, goal(x="u"), (restarted,))

    await until_async(lambda: states(pusher, restarted) == {"x": "ready"})
    assert engines[ONE].wanted == {"x": "u"}
    assert pusher.answers(KEY)["p71"].replica == restarted


async def test_another_key_sends_the_list_that_changed_meanwhile(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
    engines[ONE].key = "another"
    pusher.follow(KEY, goal(y="v"), (ONE,))
    await until_async(lambda: pusher.answers(KEY)["p71"].problem != "")
    assert engines[ONE].wanted == {"x": "u"}

    pusher.follow(KEY, goal("another", y="v"), (ONE,))

    await until_async(lambda: states(pusher, ONE) == {"y": "ready"})
    assert engines[ONE].wanted == {"y": "v"}
    assert pusher.answers(KEY)["p71"].problem == ""


async def test_a_replica_that_is_gone_is_forgotten(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    pusher.follow(KEY, goal(x="u"), (ONE, OTHER))
    await until_async(lambda: len(pusher.answers(KEY)) == 2)

    pusher.follow(KEY, goal(x="u"), (OTHER,))
    assert list(pusher.answers(KEY)) == ["p72"]
    await until_async(lambda: tasks() == {"adapters of default/m in p72"})
    pusher.forget(KEY)
    await until_async(lambda: tasks() == set())
    assert pusher.answers(KEY) == {} and pusher.pushes == {}


async def test_an_operator_that_works_again_sends_every_list_again(
    engines: dict[Replica, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = AdapterPusher(lambda _: None, PodQuestions())
    pusher.follow(KEY, goal(x="u"), (ONE,))
    assert engines[ONE].calls == []

    for count in (1, 2):
        running = asyncio.create_task(pusher.run())
        await until_async(lambda count=count: len(engines[ONE].calls) == count)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(goal())


async def test_of_an_answer_only_wanted_adapters_are_kept_and_errors_are_cut(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    uris = {f"a{number}": "s3://bucket/" + "u" * 1000 for number in range(64)}
    engines[ONE].extra = [AdapterState(f"other {number}", "u" * 100, "failed") for number in range(500)]
    engines[ONE].broken = dict.fromkeys(uris.values(), "e" * 3000)

    pusher.follow(KEY, goal(**uris), (ONE,))

    await until_async(lambda: len(states(pusher, ONE)) == 64)
    answer = pusher.answers(KEY)[ONE.pod]
    assert not answer.problem
    assert {each.name for each in answer.states} == uris.keys()
    assert all(each.error == "e" * 997 + "..." for each in answer.states)
    # The spec's own text, not a copy for each replica.
    wanted = pusher.pushes[KEY][ONE].goal.wanted.by_name()
    assert all(each.uri is wanted[each.name] for each in answer.states)


async def test_a_replica_with_an_adapter_too_many_has_not_reached_its_goal(
    pusher: AdapterPusher, engines: dict[Replica, Engine]
) -> None:
    engines[ONE].extra = [AdapterState("other", "u", "ready")]

    pusher.follow(KEY, goal(x="v"), (ONE,))

    await until_async(lambda: engines[ONE].calls.count("PUT") > 1)
    assert states(pusher, ONE) == {"x": "ready"}
    engines[ONE].extra = []
    await until_async(lambda: pusher.pushes[KEY][ONE].is_reached)


async def test_answers_that_change_without_progress_are_asked_for_less_and_less_often(
    pusher: AdapterPusher, engines: dict[Replica, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []

    async def waited(event: asyncio.Event, seconds: float) -> bool:
        delays.append(seconds)
        await asyncio.sleep(0)
        return event.is_set()

    monkeypatch.setattr(adapter_pusher, "is_set", waited)
    engines[ONE].loading.add("u")
    engines[ONE].restless = True

    pusher.follow(KEY, goal(x="u"), (ONE,))
    await until_async(lambda: len(delays) >= 8)

    assert delays[:8] == [adapter_pusher.POLL_SECONDS * 2**count for count in range(8)]
    engines[ONE].loading.clear()
    await until_async(lambda: states(pusher, ONE) == {"x": "ready"})
