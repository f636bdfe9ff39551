"""Questions to engines that start, over HTTP."""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.control.start_poller import StartPoller
from llm_operator.observed import Replica, StartReport
from waiting import until, until_async

from engine_server.contract.cluster.api import Key

KEY = Key("default", "m")
# Engines listen on one port, so each process that runs the tests has loopback addresses of its own.
NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
ADDRESS, NOBODY = f"{NETWORK}.61", f"{NETWORK}.62"
REPLICA = Replica("a", "2026-01-01T00:00:00Z", ADDRESS)
LOADING = {"status": "loading", "phase": "load", "percent": 42, "seconds": {"import": 4.0}}
READY = {"status": "ready", "seconds": {"import": 4.0, "load": 11.0, "warm up": 5.0}}


class Engine:
    """An HTTP server that answers /ready as an engine does."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = LOADING
        self.questions = 0

    async def ready(self, _: web.Request) -> web.Response:
        self.questions += 1
        text = json.dumps(self.answer).replace('"NESTED"', "[" * 1500 + "]" * 1500)
        status = 200 if self.answer["status"] == "ready" else 503
        return web.Response(text=text, status=status, content_type="application/json")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    application = web.Application()
    application.router.add_get("/ready", engine.ready)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 8000).start()
    yield engine
    await runner.cleanup()


async def test_each_change_of_a_start_wakes_the_llmdeployment(engine: Engine) -> None:
    woken: list[Key] = []
    poller = StartPoller(woken.append, PodQuestions(), interval=0.01)
    poller.follow(KEY, REPLICA)
    await until_async(lambda: KEY in poller.reports)
    assert poller.reports[KEY] == StartReport(REPLICA, "load", 42, {"import": 4.0}, is_final=False)

    engine.answer = READY
    await until_async(lambda: poller.reports[KEY].is_final)
    poller.follow(KEY, None)

    assert woken == [KEY, KEY]
    assert poller.reports[KEY].seconds == READY["seconds"]


async def test_a_replica_that_does_not_answer_is_asked_until_it_does(engine: Engine) -> None:
    engine.answer = {"status": ["what"]}
    woken: list[Key] = []
    poller = StartPoller(woken.append, PodQuestions(), interval=0.0001)
    poller.follow(KEY, REPLICA)
    await until_async(lambda: engine.questions > 9)
    assert poller.reports == {}

    engine.answer = READY
    await until_async(lambda: woken)

    assert poller.reports[KEY].is_final
    poller.follow(KEY, None)


async def test_a_new_replica_is_asked_during_the_pause_of_one_that_does_not_answer(engine: Engine) -> None:
    poller = StartPoller(lambda _: None, PodQuestions(), interval=3600.0)
    poller.follow(KEY, REPLICA._replace(address=NOBODY))
    # While the first is asked, and while its answer is waited for.
    for pod in ("b", "c"):
        another = REPLICA._replace(pod=pod)
        poller.follow(KEY, another)
        await until_async(lambda one=another: KEY in poller.reports and poller.reports[KEY].replica == one)

    poller.forget(KEY)
    assert (poller.reports, poller.follower.tasks) == ({}, {})


@pytest.mark.parametrize(
    "answer",
    [
        {"status": ["what"]},
        {"status": "ready", "seconds": {"import": 1.0, "load": 1e308}},
        {"status": "ready", "seconds": {"load": -1.0}},
        {"status": "loading", "percent": 10**310},
        {"status": "loading", "phase": "x" * 1000},
        {"status": "loading", "other": "NESTED"},
    ],
    ids=str,
)
async def test_an_answer_that_is_not_an_engines_is_no_report(engine: Engine, answer: dict[str, Any]) -> None:
    engine.answer = answer
    poller = StartPoller(lambda _: None, PodQuestions(), interval=0.001)
    poller.follow(KEY, REPLICA)
    await until_async(lambda: engine.questions > 2)
    poller.follow(KEY, None)
    assert poller.reports == {}


@pytest.mark.usefixtures("operator")
async def test_a_cold_start_shows_its_percentage_and_then_its_seconds(
    world: Any, manifest: Any, name: str, engine: Engine
) -> None:
    world.apply(manifest(name))
    await until_async(lambda: world.find("deployment", f"{name}-engine"))
    labels = world.get("deployment", f"{name}-engine")["spec"]["template"]["metadata"]["labels"]
    container = {"name": "engine", "image": "x"}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": world.pod_owners(name)},
            "spec": {"containers": [container]},
        }
    )
    running = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 0, "imageID": ""}
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "containerStatuses": [container | running | {"ready": False}],
    }
    world.set_status("pod", name, status)
    await until_async(lambda: "42 %" in world.condition(name, "Ready").get("message", ""))

    engine.answer = READY
    became = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:25Z"}
    world.set_status("pod", name, status | {"conditions": [became]})
    await until_async(lambda: world.get("llmd", name)["status"].get("start", {}).get("warmed") == 5)
    start = world.get("llmd", name)["status"]["start"]
    assert (start["pod"], start["loaded"], start["ready"]) == (name, 15, 5)
    world.delete("pod", name)
    until(lambda: "start" not in world.get("llmd", name)["status"])
