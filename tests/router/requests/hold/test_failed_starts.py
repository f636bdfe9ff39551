"""Requests for a deployment whose start was given up: a source says until when it is not tried again."""

import asyncio
import time

import aiohttp

from engine_server.router.obstacle import Obstacle


async def error_of(request) -> tuple[int, str, aiohttp.typedefs.LooseHeaders, dict]:
    async with request as response:
        error = (await response.json())["error"]
        return response.status, error["code"], response.headers, error


async def test_requests_are_refused_until_the_pause_after_a_failed_start_has_passed(
    start_scaled, scale, eventually
):
    router = await start_scaled()
    scale.set(waker=scale, obstacle=Obstacle("StartFailed", retry_at=time.time() + 600))

    status, code, headers, error = await error_of(router.chat())

    assert (status, code) == (503, "no_replica") and "StartFailed" in error["message"]
    assert 500 < int(headers["Retry-After"]) <= 600
    # Clients would ignore so long a time, and come back at once.
    assert headers["x-should-retry"] == "false"
    assert scale.wakes == 0
    scale.set(waker=scale, obstacle=Obstacle("StartFailed", retry_at=time.time() - 1))
    request = asyncio.create_task(error_of(router.chat()))
    await eventually(lambda: scale.wakes == 1)
    request.cancel()


async def test_requests_that_wait_for_a_start_that_is_given_up_wake_nothing(start_scaled, scale, eventually):
    router = await start_scaled()
    requests = [asyncio.create_task(error_of(router.chat())) for _ in range(3)]
    await eventually(lambda: router.server._hold.count == 3 and scale.wakes == 1)

    class AtZeroAgain:
        wakes = 0

        async def wake(self):
            AtZeroAgain.wakes += 1

    scale.set(waker=AtZeroAgain(), obstacle=Obstacle("StartFailed", retry_at=time.time() + 600))

    assert {answer[0] for answer in await asyncio.gather(*requests)} == {503}
    assert AtZeroAgain.wakes == 0
