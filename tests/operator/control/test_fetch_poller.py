"""Questions to pods that download: their intervals, and which answers count as progress."""

import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from llm_operator.control.fetch_poller import FetchPoller, FetchProgress, interval_after
from llm_operator.control.pod_questions import PodQuestions

# Pods report on one port, so each process that runs the tests has loopback addresses of its own.
ADDRESS = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.93"


def test_pods_that_do_not_answer_are_asked_at_growing_intervals() -> None:
    assert [interval_after(silences, 2.0) for silences in (0, 1, 2, 10, 1000)] == [2, 4, 8, 30, 30]


class Pod:
    """A pod that answers with a status and a body."""

    status, body = 200, '{"done": 5, "total": 15}'

    async def handle(self, request: web.Request) -> web.Response:
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
