"""Requests that wait, on the page by which the operator scales deployments."""

import asyncio

import msgspec

from engine_server.contract.cluster.demand import DEMAND_PATH, DemandReport, DeploymentDemand


async def demand(router) -> DeploymentDemand:
    async with router.internal(DEMAND_PATH) as response:
        return msgspec.json.decode(await response.read(), type=DemandReport).deployments[0]


async def status_of(request) -> int:
    async with request as response:
        await response.read()
        return response.status


async def test_requests_that_wait_are_held_and_not_in_flight(start_engine, start_scaled, scale, eventually):
    engine = await start_engine()
    router = await start_scaled()
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(4)]
    await eventually(lambda: router.server._hold.count == 4)

    waiting = await demand(router)
    assert (waiting.in_flight, waiting.held, waiting.idle_seconds) == (0, 4, 0.0)

    scale.set(engine)
    assert await asyncio.gather(*requests) == [200] * 4
    assert (await demand(router)).held == 0


async def test_a_client_that_disconnects_while_it_waits_is_no_demand(start_scaled, eventually):
    router = await start_scaled()
    request = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: router.server._hold.count == 1)
    request.cancel()

    async def is_idle() -> bool:
        return (await demand(router)).idle_seconds > 0.0

    await eventually(is_idle)
