"""Requests that wait for an adapter: they are released where it is loaded, and stand in the way of no others."""

import asyncio
from collections import Counter

from engine_server.contract.cluster.demand import DEMAND_PATH
from engine_server.router.obstacle import Obstacle
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.directory import Adapter
from engine_server.router.routing.endpoint import Address


def sql(*engines, error: str = "") -> Adapter:
    return Adapter("sql", tuple(Address.parse(engine.url) for engine in engines), error=error)


def held(router) -> int:
    return router.server._hold.count


async def outcome_of(request) -> tuple[int, dict]:
    async with request as response:
        return response.status, await response.json()


async def test_requests_for_an_adapter_that_is_loading_wait_and_others_pass(
    start_engine, start_scaled, scale, eventually
):
    one, two = await start_engine(), await start_engine()
    router = await start_scaled()
    scale.set(one, two, adapters=(sql(),))
    waiting = [asyncio.create_task(outcome_of(router.chat("sql"))) for _ in range(20)]
    await eventually(lambda: held(router) == 20)
    for _ in range(4):
        assert (await outcome_of(router.chat()))[0] == 200
    async with router.internal(DEMAND_PATH) as response:
        assert (await response.json())["deployments"][0]["held"] == 20
    assert held(router) == 20

    scale.set(one, two, adapters=(sql(two),))

    outcomes = await asyncio.gather(*waiting)
    assert Counter((status, body["port"]) for status, body in outcomes) == {(200, two.port): 20}


async def test_a_request_for_an_adapter_wakes_its_deployment_and_waits_until_it_is_loaded(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    scale.set(waker=scale, adapters=(sql(),))
    request = asyncio.create_task(outcome_of(router.chat("sql")))
    await eventually(lambda: scale.wakes == 1)

    scale.set(engine, adapters=(sql(),))
    assert (await outcome_of(router.chat()))[0] == 200
    assert held(router) == 1 and not request.done()

    scale.set(engine, adapters=(sql(engine),))
    assert (await request)[0] == 200
    assert scale.wakes == 1


async def test_a_deployment_is_woken_once_for_requests_for_its_model_and_its_adapters(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    scale.set(waker=scale, adapters=(sql(),))
    models = ["m", "sql"]
    requests = [asyncio.create_task(outcome_of(router.chat(model))) for model in models * 3]
    await eventually(lambda: held(router) == 6 and scale.wakes)

    scale.set(engine, adapters=(sql(engine),))

    assert [status for status, _ in await asyncio.gather(*requests)] == [200] * 6
    assert scale.wakes == 1


async def test_requests_that_wait_are_refused_when_their_adapter_fails(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    scale.set(engine, adapters=(sql(),))
    requests = [asyncio.create_task(outcome_of(router.chat("sql"))) for _ in range(3)]
    await eventually(lambda: held(router) == 3)

    scale.set(engine, adapters=(sql(error="it is not a LoRA adapter"),))

    for status, body in await asyncio.gather(*requests):
        assert status == 503 and "can serve the adapter 'sql'" in body["error"]["message"]


async def test_an_error_of_an_adapter_does_not_keep_a_deployment_at_zero(
    start_engine, start_scaled, scale, eventually
):
    """No replica is there that could have reported it."""
    router = await start_scaled()
    scale.set(waker=scale, adapters=(sql(error="an earlier one"),))
    request = asyncio.create_task(outcome_of(router.chat("sql")))
    await eventually(lambda: scale.wakes == 1)
    engine = await start_engine()
    scale.set(engine, adapters=(sql(engine),))
    assert (await request)[0] == 200


async def test_a_request_is_refused_as_unknown_when_the_adapter_that_it_waits_for_is_removed(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    scale.set(engine, adapters=(sql(),))
    request = asyncio.create_task(outcome_of(router.chat("sql")))
    await eventually(lambda: held(router) == 1)

    scale.set(engine)

    status, body = await request
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert held(router) == 0


async def test_requests_of_a_deployment_that_cannot_start_are_refused_for_its_adapters_too(
    start_scaled, scale
):
    router = await start_scaled()
    scale.set(obstacle=Obstacle("SecretNotFound", permanent=True), adapters=(sql(),))
    status, body = await outcome_of(router.chat("sql"))
    assert status == 503 and "SecretNotFound" in body["error"]["message"]


async def test_an_adapter_may_still_be_loaded_by_the_live_replicas_of_a_deployment_that_cannot_start_more(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    scale.set(engine, obstacle=Obstacle("QuotaExceeded", permanent=True), adapters=(sql(),))
    request = asyncio.create_task(outcome_of(router.chat("sql")))
    await eventually(lambda: held(router) == 1)
    scale.set(engine, obstacle=Obstacle("QuotaExceeded", permanent=True), adapters=(sql(engine),))
    assert (await request)[0] == 200


async def test_each_adapter_has_a_bound_of_its_own(start_engine, start_scaled, scale, eventually):
    engine = await start_engine()
    router = await start_scaled(HoldSettings(requests=2))
    scale.set(waker=scale, adapters=(sql(),))
    requests = [asyncio.create_task(outcome_of(router.chat("sql"))) for _ in range(2)]
    await eventually(lambda: held(router) == 2)

    async with router.chat("sql") as response:
        assert response.status == 503 and int(response.headers["Retry-After"]) > 0
    requests.append(asyncio.create_task(outcome_of(router.chat())))
    await eventually(lambda: held(router) == 3)

    scale.set(engine, adapters=(sql(engine),))
    assert [status for status, _ in await asyncio.gather(*requests)] == [200] * 3


async def test_without_waiting_a_loading_adapter_is_refused_with_retry_after(
    start_engine, start_scaled, scale
):
    router = await start_scaled(HoldSettings(seconds=0.0))
    scale.set(await start_engine(), adapters=(sql(),))
    async with router.chat("sql") as response:
        assert response.status == 503 and int(response.headers["Retry-After"]) > 0
        assert "loaded the adapter" in (await response.json())["error"]["message"]


async def test_a_stream_waits_with_comments_for_its_adapter(start_engine, start_scaled, scale, eventually):
    engine = await start_engine()
    router = await start_scaled(HoldSettings(comment_seconds=0.01))
    scale.set(engine, adapters=(sql(),))
    response = await router.chat("sql", stream=True)
    assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    assert held(router) == 1
    response.close()
    await eventually(lambda: held(router) == 0)
