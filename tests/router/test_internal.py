"""The internal port: metrics and other pages that name namespaces and pods."""

import asyncio

import pytest
from router_keys import KeysFile, ask, bearer, status_of

from engine_server.contract.cluster.engine_keys import INTERNAL_PAGES, derive_key
from engine_server.router.callers.peers import PeerSettings
from engine_server.router.routing.endpoint import Address


async def test_metrics_are_on_the_internal_port_alone(start_router):
    router = await start_router()
    async with router.internal("/metrics") as response:
        assert response.status == 200 and response.content_type == "text/plain"
        assert "fairlead_router_in_flight 0.0" in await response.text()
    for path in ("/metrics", "/internal/endpoints", "/internal/usage"):
        async with router.get(path) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/metrics", 405),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/v1/models", 404),
        ("GET", "/internal/none", 404),
    ],
)
async def test_the_internal_port_has_nothing_else(start_router, method, path, status):
    router = await start_router()
    url = f"http://127.0.0.1:{router.metrics_port}{path}"
    async with router.session.request(method, url) as response:
        assert response.status == status


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 1", b"Content-Length: 30000000", b"Transfer-Encoding: chunked"],
    ids=["small", "large", "chunks"],
)
async def test_the_internal_port_refuses_a_body_from_its_head(start_router, framing):
    router = await start_router(buffer_bytes=1 << 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", router.metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\n" + framing + b"\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413") and b"This port takes no bodies" in answer
    assert (
        await router.metric('fairlead_router_rejected_total{reason="unexpected_body",sender="client"}') == 1
    )


async def test_a_request_without_a_body_may_say_so_on_the_internal_port(start_router):
    router = await start_router()
    url = f"http://127.0.0.1:{router.metrics_port}/metrics"
    async with router.session.get(url, headers={"Content-Length": "0"}) as response:
        assert response.status == 200


async def test_requests_to_the_internal_port_take_nothing_of_the_public_ports_memory(start_router):
    """Bodies are refused, and what is sent of them nevertheless is discarded as it arrives."""
    router = await start_router(buffer_bytes=1 << 20)
    clients = [await asyncio.open_connection("127.0.0.1", router.metrics_port) for _ in range(4)]
    for reader, writer in clients:
        writer.write(b"POST /metrics HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + b"x" * 800_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    assert await router.metric("fairlead_router_buffer_bytes") == 0
    for _, writer in clients:
        writer.close()


ROOTS = b"first root\nsecond root\n"


@pytest.fixture
def root_key_file(tmp_path):
    file = tmp_path / "root"
    file.write_bytes(ROOTS)
    return file


def internal_key(root: bytes) -> dict[str, str]:
    return {"Authorization": f"Bearer {derive_key(root, INTERNAL_PAGES)}"}


@pytest.mark.parametrize("path", ["/internal/usage", "/internal/demand", "/internal/endpoints"])
async def test_internal_pages_take_a_key_of_the_router_where_they_require_one(
    start_router, root_key_file, path
):
    router = await start_router(engine_key_file=root_key_file, requires_internal_key=True)
    url = f"http://127.0.0.1:{router.metrics_port}{path}"

    answers = []
    for headers in ({}, {"Authorization": "Bearer first root"}, internal_key(b"another root")):
        async with router.session.get(url, headers=headers) as response:
            answers.append((response.status, (await response.json())["error"]["code"]))
    assert answers == [(401, "invalid_api_key")] * 3
    for root in ROOTS.splitlines():
        async with router.session.get(url, headers=internal_key(root)) as response:
            assert response.status == 200


async def test_metrics_need_no_key_and_without_the_flag_no_page_does(start_router, root_key_file):
    requiring = await start_router(engine_key_file=root_key_file, requires_internal_key=True)
    open_to_all = await start_router(engine_key_file=root_key_file)
    async with requiring.internal("/metrics") as response:
        assert response.status == 200
    async with open_to_all.internal("/internal/usage") as response:
        assert response.status == 200


async def test_routers_send_each_other_the_key_of_the_internal_pages(
    start_engine, start_router, root_key_file, tmp_path, eventually
):
    file = KeysFile(tmp_path / "keys.yaml").write({"name": "a", "requestsPerMinute": 1})
    engine = await start_engine()
    settings = {"keys_file": file, "engine_key_file": root_key_file, "requires_internal_key": True}
    first = await start_router({"m": [engine]}, **settings)
    peers = PeerSettings((Address("127.0.0.1", first.metrics_port),), interval=0.05)
    second = await start_router({"m": [engine]}, peers=peers, **settings)
    assert await status_of(ask(first, headers=bearer())) == 200

    async def second_knows() -> bool:
        url = f"http://127.0.0.1:{second.metrics_port}/internal/usage"
        async with second.session.get(url, headers=internal_key(b"first root")) as response:
            return '"requests_last_minute":1' in await response.text()

    await eventually(second_knows)
    assert await status_of(ask(second, headers=bearer())) == 429
