"""The router process: draining after a signal, and closing connections that are idle for too long."""

import asyncio
import os
import re
import resource
import signal

import pytest
from loopbacks import both_families
from router_process import start_process

from engine_server.contract.base.authority import authority
from engine_server.contract.cluster.api import Key
from engine_server.router.command import build_parser
from engine_server.router.http.limits import Limits
from engine_server.router.routing.directory import Deployment
from engine_server.router.server import drain_seconds

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


@pytest.fixture
async def process(start_engine, eventually, session):
    """A router process in front of an engine that holds its answers; (process, URL, engine, event to release them)."""
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    child, url, metrics = await start_process("--endpoint", f"m={engine.url}", "--drain-timeout", "30")

    async def is_live() -> bool:
        async with session.get(metrics) as response:
            text = await response.text()
            return 'endpoint_live{deployment="m"' in text and "} 1.0" in text.split("endpoint_live{")[1]

    await eventually(is_live)
    yield child, url, engine, release
    if child.returncode is None:
        child.kill()
    await child.wait()


async def test_drain_after_sigterm_finishes_requests_in_flight(process, eventually, session):
    child, url, engine, release = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGTERM)

    async def draining() -> bool:
        async with session.get(f"{url}/ready") as response:
            return response.status == 503 and (await response.json()) == {"status": "draining"}

    await eventually(draining)
    late = asyncio.create_task(send(session, url))
    await eventually(lambda: len(engine.received) == 2)  # connections are still accepted

    async def refused() -> bool:
        try:
            async with session.get(f"{url}/health"):
                return False
        except OSError:
            return True

    await eventually(refused)
    assert child.returncode is None
    release.set()
    assert await pending == await late == (200, "close")
    assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_a_second_signal_aborts_requests_in_flight(process, eventually, session):
    child, url, engine, _ = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGINT)

    async def closed() -> bool:
        return b"draining" in await child.stderr.readline()

    await eventually(closed)
    os.kill(child.pid, signal.SIGINT)
    assert await asyncio.wait_for(child.wait(), 20) == 0
    assert isinstance((await asyncio.gather(pending, return_exceptions=True))[0], OSError | Exception)


@pytest.mark.more
async def test_drain_grace_is_configurable_and_a_second_signal_ends_it(start_engine, eventually, session):
    engine = await start_engine()
    child, url, _ = await start_process("--endpoint", f"m={engine.url}", "--drain-grace", "3600")
    os.kill(child.pid, signal.SIGTERM)

    async def draining() -> bool:
        async with session.get(f"{url}/ready") as response:
            return response.status == 503

    await eventually(draining)

    async def answers() -> bool:
        return await send(session, url) == (200, "close")

    await eventually(answers)
    os.kill(child.pid, signal.SIGTERM)
    assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_idle_timeout_is_configurable_and_longer_than_that_of_load_balancers():
    assert Limits().idle_seconds > 600
    child, url, _ = await start_process("--endpoint", "m=http://127.0.0.1:9", "--idle-timeout", "0.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    child.kill()
    await child.wait()


@pytest.mark.parametrize(
    ("timeouts", "seconds"), [([], 600), ([60], 60), ([60, 300], 300), ([60, 900], 600), ([60, None], 600)]
)
def test_drain_lasts_as_long_as_the_longest_of_the_deployments_within_the_limit(timeouts, seconds):
    deployments = [Deployment(Key("a", f"m{n}"), (), drain_timeout=one) for n, one in enumerate(timeouts)]
    assert drain_seconds(600, deployments) == seconds


@both_families
async def test_both_ports_answer_on_the_addresses_of_both_families(session, loopback):
    everywhere = build_parser().get_default("host")
    child, *urls = await start_process("--endpoint", "m=http://127.0.0.1:9", "--host", everywhere)
    try:
        ports = [int(re.search(r":(\d+)", url.rpartition("]")[2])[1]) for url in urls]
        for port, path in zip(ports, ("health", "metrics"), strict=True):
            async with session.get(f"http://{authority(loopback, port)}/{path}") as answer:
                assert answer.status == 200
    finally:
        child.kill()
        await child.wait()


@pytest.mark.more
async def test_raises_the_limit_of_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        child, _, _ = await start_process("--endpoint", "m=http://127.0.0.1:9")
        limits = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    child.kill()
    await child.wait()
    assert limits == (hard, hard)


async def send(session, url) -> tuple[int, str | None]:
    async with session.post(f"{url}/v1/completions", json={"model": "m"}) as response:
        await response.read()
        return response.status, response.headers.get("Connection")


async def send_until_it_arrives(session, url, engine, eventually) -> asyncio.Task:
    task = asyncio.create_task(send(session, url))
    await eventually(lambda: engine.received)
    return task
