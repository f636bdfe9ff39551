"""Questions to pods that download: which answers count as progress, and for how long."""

import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from llm_operator.control.fetch_poller import FetchPoller, FetchProgress
from llm_operator.control.pod_questions import PodQuestions
from waiting import until_async

from engine_server.contract.cluster.api import Key

KEY = Key("default", "m")
# Pods report on one port, so each process that runs the tests has loopback addresses of its own.
NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
ADDRESS, NOBODY = f"{NETWORK}.93", f"{NETWORK}.94"


class Pod:
    """A pod that answers with a status and a body."""

    status, body = 200, '{"done": 5, "total": 15}'
    questions = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.questions += 1
        return web.Response(status=self.status, text=self.body)


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    pod = Pod()
    application = web.Application()
    application.router.add_get("/progress", pod.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 8000).start()
    yield pod
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "progress"),
    [
        (200, '{"done": 5, "total": 15}', FetchProgress(5, 15)),
        (500, '{"done": 5, "total": 15}', None),
        (404, "{}", None),
        (200, "[]", None),
    ],
)
async def test_an_answer_with_the_status_200_alone_is_progress(
    pod: Pod, status: int, body: str, progress: FetchProgress | None
) -> None:
    pod.status, pod.body = status, body
    assert await FetchPoller(PodQuestions())._ask("default", (ADDRESS,)) == progress


async def test_progress_is_known_while_a_pod_reports_it_and_is_followed(pod: Pod) -> None:
    downloads = FetchPoller(PodQuestions(), interval=0.001)
    downloads.follow(KEY, (ADDRESS,))
    await until_async(lambda: downloads.progress == {KEY: FetchProgress(5, 15)})
    pod.status = 503
    await until_async(lambda: downloads.progress == {})
    pod.status = 200
    await until_async(lambda: downloads.progress == {KEY: FetchProgress(5, 15)})

    downloads.follow(KEY, ())

    assert (downloads.progress, downloads.follower.tasks) == ({}, {})


async def test_a_new_pod_is_asked_during_the_pause_of_one_that_does_not_answer(pod: Pod) -> None:
    pod.status = 503
    downloads = FetchPoller(PodQuestions(), interval=3600.0)
    downloads.follow(KEY, (ADDRESS,))
    await until_async(lambda: pod.questions)
    pod.status = 200

    downloads.follow(KEY, (NOBODY, ADDRESS))

    await until_async(lambda: downloads.progress == {KEY: FetchProgress(5, 15)})
    downloads.follow(KEY, ())
