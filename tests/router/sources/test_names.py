"""Endpoints with a name of the DNS: all of its addresses, as a resolver has them that a test controls."""

import asyncio
import json
import socket
from collections import Counter

import aiohttp
import pytest
from resumable_streams import DONE, chunk

from engine_server.contract.cluster.api import Key
from engine_server.router.routing.directory import Directory
from engine_server.router.routing.endpoint import Address
from engine_server.router.sources import names
from engine_server.router.sources.file import FileSource
from engine_server.router.sources.flags import deployments_from_flags, parse_endpoint
from engine_server.router.sources.names import MOST_ADDRESSES, NamedEndpoints

NAME = "engines.test"
# The same port on several addresses of this machine.
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
LIVE = r"fairlead_router_endpoint_live\{.*\}"
REAL = socket.getaddrinfo


class Resolver:
    """Has addresses for names that end in `.test`, and asks the system's for others."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host, port, *args, **options):
        if not str(host).endswith(".test"):
            return REAL(host, port, *args, **options)
        self.asked[host] += 1
        if host not in self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in self.hosts[host]
        ]


@pytest.fixture
def resolver(monkeypatch):
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    monkeypatch.setattr(names, "RESOLVE_SECONDS", 0.02)
    return resolver


@pytest.fixture
async def engines(start_engine):
    first = await start_engine(host=HOSTS[0])
    return [first, *[await start_engine(host=host, port=first.port) for host in HOSTS[1:]]]


@pytest.fixture
def source(tmp_path, engines):
    """The endpoints file with a name for all engines."""
    entry = {"name": "m", "endpoints": [f"http://{NAME}:{engines[0].port}"]}
    (tmp_path / "endpoints.json").write_text(json.dumps({"deployments": [entry]}))
    return FileSource(tmp_path / "endpoints.json")


class Recorder:
    """A directory of which a test sees the addresses."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.directory = Directory(
            "least_load",
            on_added=lambda endpoint, vouched: None,
            on_removed=lambda endpoint: self.removed.append(endpoint.address.described),
        )
        self.endpoints = NamedEndpoints(self.directory)

    def put(self, *flags: str) -> None:
        for deployment in deployments_from_flags([parse_endpoint(flag) for flag in flags]):
            self.endpoints.put(deployment)

    @property
    def addresses(self) -> list[str]:
        route = self.directory.resolve("m")
        return [] if route is None else [endpoint.address.described for endpoint in route.endpoints]


@pytest.fixture
async def recorder():
    recorder = Recorder()
    running = asyncio.create_task(recorder.endpoints.run())
    yield recorder
    running.cancel()
    await asyncio.wait([running])


async def test_engines_of_one_name_share_load_as_those_of_three_flags_do(
    engines, source, resolver, start_router, eventually
):
    resolver.hosts[NAME] = [*HOSTS]
    router = await start_router(sources=[source], policy="round_robin")

    async def all_live() -> bool:
        return await router.metric(LIVE) == len(engines)

    await eventually(all_live)
    for _ in range(9):
        async with router.chat() as answer:
            assert answer.status == 200
    assert [len(engine.received) for engine in engines] == [3, 3, 3]
    async with router.internal("/internal/endpoints") as page:
        (deployment,) = (await page.json())["deployments"]
    assert [(one["address"], one["name"]) for one in deployment["endpoints"]] == [
        (engine.url, NAME) for engine in engines
    ]


async def test_a_full_engine_of_a_name_leaves_the_others_open(
    engines, source, resolver, start_router, eventually
):
    async def full(engine, request, writer):
        body = b'{"error": {"code": "queue_full", "message": "full"}}'
        writer.write(b"HTTP/1.1 503 Full\r\nRetry-After: 60\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    resolver.hosts[NAME] = [*HOSTS]
    engines[0].behave = full
    router = await start_router(sources=[source], policy="round_robin")

    async def all_live() -> bool:
        return await router.metric(LIVE) == len(engines)

    await eventually(all_live)
    for _ in range(6):
        async with router.chat() as answer:
            assert answer.status == 200
    assert len(engines[0].received) == 1


async def test_addresses_come_and_go_under_running_streams_of_which_none_is_lost(
    engines, source, resolver, start_router, eventually
):
    ends = asyncio.Event()

    async def stream(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk(writer, b"data: {}\n\n")
        await ends.wait()
        chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")

    for engine in engines:
        engine.behave = stream
    resolver.hosts[NAME] = [*HOSTS[:2]]
    router = await start_router(sources=[source], policy="round_robin")

    async def live() -> float:
        return await router.metric(LIVE)

    async def two_live() -> bool:
        return await live() == 2

    await eventually(two_live)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def begin() -> aiohttp.ClientResponse:
            url = f"{router.url}/v1/chat/completions"
            answer = await session.post(url, json={"model": "m", "stream": True})
            assert await answer.content.readexactly(10) == b"data: {}\n\n"
            return answer

        streams = await asyncio.gather(*(begin() for _ in range(200)))
        resolver.hosts[NAME] = [*HOSTS[1:]]

        async def moved() -> bool:
            async with router.internal("/internal/endpoints") as page:
                (deployment,) = (await page.json())["deployments"]
            states = {one["address"]: one["state"] for one in deployment["endpoints"]}
            return states == {engine.url: "live" for engine in engines[1:]}

        await eventually(moved)
        received = [len(engine.received) for engine in engines]
        async with await begin() as later:
            ends.set()
            assert await later.read() == DONE
        assert {await one.read() for one in streams} == {DONE}
    assert received == [100, 100, 0] and len(engines[0].received) == 100


async def test_a_name_without_an_answer_is_a_deployment_without_replicas(
    resolver, recorder, eventually, caplog
):
    recorder.put(f"m=http://{NAME}:1")
    await eventually(lambda: resolver.asked[NAME] > 2)
    assert recorder.endpoints.synced
    route = recorder.directory.resolve("m")
    assert route is not None and route.endpoints == ()
    assert caplog.text.count(f"cannot resolve http://{NAME}:1: ") == 1


@pytest.mark.parametrize("answer", [None, []], ids=["failed", "empty"])
async def test_a_failed_or_empty_answer_changes_nothing(resolver, recorder, eventually, answer):
    resolver.hosts[NAME] = ["10.0.0.1"]
    recorder.put(f"m=http://{NAME}:1")
    await eventually(lambda: recorder.addresses)
    if answer is None:
        del resolver.hosts[NAME]
    else:
        resolver.hosts[NAME] = answer
    asked = resolver.asked[NAME]
    await eventually(lambda: resolver.asked[NAME] > asked + 2)
    assert recorder.addresses == [f"http://10.0.0.1:1 ({NAME})"]


async def test_an_address_of_two_names_is_one_endpoint(resolver, recorder, eventually):
    resolver.hosts |= {"a.test": ["10.0.0.1", "10.0.0.2"], "b.test": ["10.0.0.2", "10.0.0.3"]}
    recorder.put("m=http://a.test:1", "m=http://b.test:1", "m=http://10.0.0.1:1")
    await eventually(lambda: len(recorder.addresses) == 3)
    assert [shown.split(" ")[0] for shown in recorder.addresses] == [
        "http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1",
    ]  # fmt: skip


async def test_a_host_of_two_families_is_one_endpoint_in_that_which_accepts(
    resolver, recorder, eventually, start_engine
):
    engine = await start_engine()
    resolver.hosts["both.test"] = ["::1", "127.0.0.1"]
    recorder.put(f"m=http://both.test:{engine.port}")
    await eventually(lambda: recorder.addresses)
    assert recorder.addresses == [f"http://127.0.0.1:{engine.port} (both.test)"]


async def test_a_host_of_two_families_that_starts_later_is_found_in_its_family(
    resolver, recorder, eventually, start_engine
):
    engine = await start_engine()
    await engine.stop()
    resolver.hosts["both.test"] = ["::1", "127.0.0.1"]
    recorder.put(f"m=http://both.test:{engine.port}")
    await eventually(lambda: recorder.addresses)
    assert recorder.addresses == [f"http://[::1]:{engine.port} (both.test)"]
    await start_engine(port=engine.port)
    await eventually(lambda: recorder.addresses == [f"http://127.0.0.1:{engine.port} (both.test)"])
    assert recorder.removed == [f"http://[::1]:{engine.port} (both.test)"]


async def test_a_name_has_so_many_endpoints_at_most(resolver, recorder, eventually):
    resolver.hosts[NAME] = [f"10.0.{number // 250}.{number % 250}" for number in range(MOST_ADDRESSES + 1)]
    recorder.put(f"m=http://{NAME}:1")
    await eventually(lambda: recorder.addresses)
    assert len(recorder.addresses) == MOST_ADDRESSES


async def test_a_name_that_no_deployment_has_is_looked_up_no_more(resolver, recorder, eventually):
    resolver.hosts[NAME] = ["10.0.0.1"]
    recorder.put(f"m=http://{NAME}:1")
    await eventually(lambda: recorder.addresses)
    recorder.endpoints.remove(Key("default", "m"))
    recorder.put("m=http://other.test:1")
    asked = resolver.asked[NAME]
    await eventually(lambda: resolver.asked["other.test"] > 3)
    assert resolver.asked[NAME] <= asked + 1


def test_spans_have_the_name_and_the_address():
    assert Address("10.0.0.1", 1, NAME).attributes() == {
        "server.address": NAME,
        "server.port": 1,
        "network.peer.address": "10.0.0.1",
    }
