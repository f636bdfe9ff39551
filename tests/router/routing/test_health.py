"""Health: endpoints take requests once, and as long as, they are ready."""

from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.health import Health


async def test_an_endpoint_gets_requests_once_its_readiness_probe_succeeds(
    start_engine, start_router, eventually
):
    engine = await start_engine(ready=False)
    router = await start_router({"m": [engine]})
    await eventually(lambda: engine.probes > 1)
    assert not engine.received
    engine.ready = True

    async def answered() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answered)


async def test_an_ejected_endpoint_is_live_again_once_it_is_ready(start_engine, eventually):
    engine = await start_engine(ready=False)
    health = Health()
    endpoint = Endpoint(Address.parse(engine.url))
    health.add(endpoint, live=True)

    health.eject(endpoint, "test")
    health.eject(endpoint, "test")

    assert not health.is_live(endpoint) and health.ejections == 1
    engine.ready = True
    await eventually(lambda: health.is_live(endpoint))


async def test_does_not_probe_an_endpoint_that_was_removed(start_engine):
    """An answer may fail after its endpoint has left the directory."""
    health = Health()
    endpoint = Endpoint(Address.parse((await start_engine()).url))
    health.add(endpoint, live=True)
    health.remove(endpoint)

    health.eject(endpoint, "test")

    assert not health.down and health.ejections == 0 and not health.is_live(endpoint)
