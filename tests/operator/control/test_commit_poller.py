"""Questions to ready engines about the commit of their model, over HTTP."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from llm_operator.control.commit_poller import CommitPoller
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.observed import Replica
from waiting import until_async

from engine_server.contract.cluster.api import Key

KEY = Key("default", "m")
COMMIT = "a" * 40
# Engines listen on one port, so each process that runs the tests has loopback addresses of its own.
NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
ADDRESS, NOBODY = f"{NETWORK}.71", f"{NETWORK}.72"
REPLICA = Replica("a", "2026-01-01T00:00:00Z", ADDRESS)
OTHER = Replica("b", "2026-01-01T00:00:00Z", ADDRESS)


class Engine:
    """An HTTP server that answers /ready as an engine does, and counts the questions."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"status": "ready", "seconds": {"import": 4.0}, "commit": COMMIT}
        self.status = 200
        self.questions = 0

    async def ready(self, _: web.Request) -> web.Response:
        self.questions += 1
        return web.json_response(self.answer, status=self.status)


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


def poller() -> tuple[CommitPoller, list[Key]]:
    woken: list[Key] = []
    return CommitPoller(woken.append, PodQuestions(), interval=0.001), woken


async def until_answered(commits: CommitPoller) -> None:
    await until_async(lambda: all(task.done() for task in commits.follower.tasks.get(KEY, {}).values()))


async def test_each_replica_is_asked_once(engine: Engine) -> None:
    commits, woken = poller()
    commits.follow(KEY, [REPLICA])
    await until_answered(commits)

    commits.follow(KEY, [REPLICA, OTHER])
    commits.follow(KEY, [REPLICA, OTHER])
    await until_answered(commits)

    assert commits.commits[KEY] == {"a": COMMIT, "b": COMMIT}
    assert (engine.questions, woken) == (2, [KEY, KEY])


async def test_a_replica_that_drains_is_asked_again_until_it_answers(engine: Engine) -> None:
    engine.status = 503
    commits, _ = poller()
    commits.follow(KEY, [REPLICA])
    await until_async(lambda: engine.questions)
    engine.status = 200

    await until_answered(commits)

    assert commits.commits[KEY] == {"a": COMMIT}


@pytest.mark.parametrize("commit", ["main", 7, "a" * 41])
async def test_what_is_no_commit_is_no_answer(engine: Engine, commit: object) -> None:
    engine.answer["commit"] = commit
    commits, _ = poller()
    commits.follow(KEY, [REPLICA])
    await until_async(lambda: engine.questions > 1)
    before = commits.commits[KEY].copy()
    engine.answer["commit"] = COMMIT

    await until_answered(commits)

    assert (before, commits.commits[KEY]) == ({}, {"a": COMMIT})


async def test_an_engine_that_reports_no_commit_is_asked_once(engine: Engine) -> None:
    del engine.answer["commit"]
    commits, _ = poller()
    commits.follow(KEY, [REPLICA])
    await until_answered(commits)

    assert (commits.commits[KEY], engine.questions) == ({"a": ""}, 1)


async def test_a_replica_without_an_answer_delays_no_other_and_is_asked_until_it_answers(
    engine: Engine,
) -> None:
    commits, _ = poller()
    commits.follow(KEY, [REPLICA._replace(address=NOBODY), OTHER])
    await until_async(lambda: commits.commits[KEY].get("b"))
    engine.status = 503
    commits.follow(KEY, [REPLICA, OTHER])
    asked = engine.questions
    await until_async(lambda: engine.questions > asked + 5)
    engine.status = 200

    await until_answered(commits)

    assert commits.commits[KEY] == {"a": COMMIT, "b": COMMIT}


async def test_a_new_replica_is_asked_during_the_pause_of_another_that_does_not_answer(
    engine: Engine,
) -> None:
    commits = CommitPoller(lambda key: None, PodQuestions(), interval=3600.0)
    commits.follow(KEY, [REPLICA._replace(address=NOBODY)])
    # While the first is asked, and while its answer is waited for.
    for number in range(3):
        commits.follow(KEY, [REPLICA._replace(address=NOBODY), OTHER._replace(pod=f"b{number}")])
        await until_async(lambda pod=f"b{number}": commits.commits[KEY].get(pod) == COMMIT)

    commits.follow(KEY, ())


async def test_answers_of_replicas_that_are_gone_are_forgotten(engine: Engine) -> None:
    commits, _ = poller()
    commits.follow(KEY, [REPLICA])
    await until_answered(commits)

    commits.follow(KEY, ())

    assert (commits.commits, commits.follower.tasks) == ({}, {})


@pytest.mark.usefixtures("operator")
async def test_the_commit_of_a_ready_replica_is_in_the_status(
    world: Any, manifest: Any, name: str, engine: Engine
) -> None:
    world.apply(manifest(name))
    await until_async(lambda: world.find("deployment", f"{name}-engine"))
    labels = world.get("deployment", f"{name}-engine")["spec"]["template"]["metadata"]["labels"]
    container = {"name": "engine", "image": "x"}
    owners = world.pod_owners(name)
    started = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 0, "imageID": ""}
    became = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:25Z"}
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "containerStatuses": [container | started | {"ready": True}],
        "conditions": [became],
    }

    for pod, commit in ((f"{name}-1", COMMIT), (f"{name}-2", "b" * 40)):
        engine.answer["commit"] = commit
        metadata = {"name": pod, "labels": labels, "ownerReferences": owners}
        world.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        )
        world.set_status("pod", pod, status)
        expected = {"commit": commit, "pods": [pod]}
        await until_async(lambda e=expected: e in world.get("llmd", name)["status"].get("commits", []))

    await until_async(lambda: world.condition(name, "Degraded").get("reason") == "MixedRevisions")
    world.delete("pod", f"{name}-2")
    await until_async(lambda: world.condition(name, "Degraded").get("reason") != "MixedRevisions")
