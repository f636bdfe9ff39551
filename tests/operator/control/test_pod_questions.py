"""Questions to pods that answer as they like."""

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientTimeout, web
from llm_operator.control import pod_questions
from llm_operator.control.pod_questions import (
    LARGEST_ANSWER,
    MOST_QUESTIONS,
    Answer,
    PodQuestions,
    pause_after,
)
from waiting import PATIENCE, until_async

NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
POD, OTHER = f"{NETWORK}.81", f"{NETWORK}.82"
PORT = 8000
COMPRESSED = gzip.compress(bytes(1 << 20))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[str, Handler], Awaitable[None]]]:
    """Return a function that serves every path of an address with a handler."""
    runners: list[web.AppRunner] = []

    async def serve(address: str, handler: Handler) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runners.append(web.AppRunner(application, shutdown_timeout=0.01))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], address, PORT).start()

    yield serve
    for runner in runners:
        await runner.cleanup()


async def ask(address: str = POD) -> Answer:
    return await PodQuestions().ask("team", address, PORT, "/progress")


async def test_a_redirect_is_an_answer_and_is_not_followed(
    serve: Callable[[str, Handler], Awaitable[None]],
) -> None:
    asked: list[str] = []

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"http://{OTHER}:{PORT}/secret"})

    async def secret(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="{}")

    await serve(POD, redirect)
    await serve(OTHER, secret)

    assert await ask() == Answer(302, b"")
    assert asked == []


async def test_an_endless_body_is_no_answer_and_is_not_read_to_memory(
    serve: Callable[[str, Handler], Awaitable[None]],
) -> None:
    num_sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal num_sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(1 << 16))
                num_sent += 1
        except ConnectionError:
            return response

    await serve(POD, endless)

    with pytest.raises(ValueError, match=f"more than {LARGEST_ANSWER} bytes"):
        await ask()
    # The rest is in the sockets' buffers.
    assert num_sent < 400


async def test_a_body_is_not_decompressed(serve: Callable[[str, Handler], Awaitable[None]]) -> None:
    async def compressed(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=COMPRESSED, headers={"Content-Encoding": "gzip"})

    await serve(POD, compressed)

    assert (await ask()).body == COMPRESSED


async def test_many_header_fields_are_no_answer(serve: Callable[[str, Handler], Awaitable[None]]) -> None:
    async def verbose(_: web.Request) -> web.Response:
        return web.Response(headers={f"X-{number}": "x" for number in range(1000)})

    await serve(POD, verbose)

    with pytest.raises(ValueError, match="header"):
        await ask()


async def test_pods_that_hold_their_questions_delay_no_other_namespace(
    serve: Callable[[str, Handler], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_questions, "TIMEOUT", ClientTimeout(total=2 * PATIENCE))
    num_held = 0

    async def hold(_: web.Request) -> web.Response:
        nonlocal num_held
        num_held += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="{}")

    await serve(POD, hold)
    await serve(OTHER, answer)
    questions = PodQuestions()
    held = [
        asyncio.create_task(questions.ask("team", POD, PORT, "/ready")) for _ in range(2 * MOST_QUESTIONS)
    ]
    await until_async(lambda: num_held == MOST_QUESTIONS)

    assert (await questions.ask("others", OTHER, PORT, "/ready")).status == 200

    assert num_held == MOST_QUESTIONS
    for task in held:
        task.cancel()
    await asyncio.wait(held)


def test_a_pod_that_does_not_answer_is_asked_ever_more_rarely() -> None:
    assert [pause_after(failures, 2.0) for failures in (0, 1, 2, 3, 10_000)] == [2.0, 4.0, 8.0, 16.0, 300.0]
    assert [pause_after(failures, 2.0, 30.0) for failures in (3, 4, 10_000)] == [16.0, 30.0, 30.0]
