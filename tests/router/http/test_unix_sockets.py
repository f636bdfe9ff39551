"""Engines that listen on Unix sockets."""

from pathlib import Path

from engine_server.router.sources.file import FileSource


def write(file: Path, content: str) -> None:
    file.write_text(content)


async def test_requests_reuse_a_connection_to_a_unix_socket(start_engine, start_router, tmp_path):
    engine = await start_engine(socket=tmp_path / "a.sock")
    router = await start_router({"m": [engine]})

    for _ in range(5):
        async with router.chat() as response:
            assert response.status == 200

    assert (len(engine.received), engine.connections) == (5, 1)


async def test_an_engine_on_a_unix_socket_is_ejected_and_comes_back(
    start_engine, start_router, tmp_path, eventually
):
    engine = await start_engine(socket=tmp_path / "a.sock")
    router = await start_router({"m": [engine]})
    await engine.stop()
    async with router.chat() as response:
        assert response.status == 503

    engine.socket.unlink()
    await engine.start()

    async def answers() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answers)


async def test_an_engine_whose_socket_is_gone_is_ejected(start_engine, start_router, tmp_path):
    engine = await start_engine(socket=tmp_path / "a.sock")
    router = await start_router({"m": [engine]})
    await engine.stop()
    engine.socket.unlink(missing_ok=True)

    async with router.chat() as response:
        assert response.status == 503

    assert await router.metric(rf'fairlead_router_endpoint_live\{{.*endpoint="{engine.url}".*\}}') == 0


async def test_pages_name_the_path(start_engine, start_router, tmp_path):
    engine = await start_engine(socket=tmp_path / "a.sock")
    router = await start_router({"m": [engine]})

    async with router.internal("/internal/endpoints") as response:
        assert engine.url in await response.text()
    live = rf'fairlead_router_endpoint_live\{{.*endpoint="{engine.url}".*\}}'
    assert await router.metric(live) == 1


async def test_an_endpoints_file_has_unix_sockets(start_engine, start_router, tmp_path, eventually):
    engine = await start_engine(socket=tmp_path / "a.sock")
    file = tmp_path / "endpoints.json"
    write(file, f'{{"deployments": [{{"name": "m", "endpoints": ["{engine.url}"]}}]}}')
    router = await start_router(sources=[FileSource(file)])

    async def answers() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answers)
