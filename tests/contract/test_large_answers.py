"""Answers of 200 MB, sent or unpacked: whoever asked keeps no more of them than its bound."""

import asyncio
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from llm_operator.autoscaling import routers
from llm_operator.autoscaling.routers import Routers, RouterService
from llm_operator.control import adapter_pusher, pod_questions, start_poller
from llm_operator.control.adapter_pusher import AdapterPusher, Goal, Push
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.control.start_poller import StartPoller
from llm_operator.observed import Replica

from engine_server.contract.cluster.adapters import WantedAdapters
from engine_server.router.callers.engine_credentials import EngineCredentials
from engine_server.router.callers.ledger import Ledger
from engine_server.router.callers.peers import MAX_REPORT_BYTES, Peers, PeerSettings
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import probe

SIZE = 200_000_000
PIECE = b" " * 65_536
# For what libraries hold of a connection, and unpack at a time.
MARGIN = 4 << 20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def send_fields(writer: asyncio.StreamWriter) -> None:
    """Send a head that does not end."""
    await send(writer, OK + b"X-Padding:", PIECE)


async def send_body(writer: asyncio.StreamWriter) -> None:
    await send(writer, OK + b"Content-Length: %d\r\n\r\n" % SIZE, PIECE)


async def send_line(writer: asyncio.StreamWriter) -> None:
    """Send what is not even HTTP."""
    await send(writer, b"", PIECE)


async def send_packed(writer: asyncio.StreamWriter) -> None:
    """Send a small body that unpacks to a large one."""
    packer = zlib.compressobj(wbits=31)
    packed = b"".join(packer.compress(PIECE) for _ in range(SIZE // len(PIECE))) + packer.flush()
    await send(
        writer, OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed, b""
    )


async def send(writer: asyncio.StreamWriter, begin: bytes, piece: bytes) -> None:
    writer.write(begin)
    for _ in range(SIZE // len(PIECE)):
        writer.write(piece)
        await writer.drain()


@asynccontextmanager
async def sender(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """Serve an answer to all requests; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def ask_a_router_for_demand(port: int) -> None:
    asking = Routers(None, RouterService("n", "s"))  # type: ignore[arg-type]
    async with aiohttp.ClientSession() as session:
        await asking._ask(session, f"127.0.0.1:{port}")
    assert not asking.answers


async def ask_a_router_for_usage(port: int) -> None:
    peers = Peers(PeerSettings(), Ledger(0.0), EngineCredentials())
    async with aiohttp.ClientSession() as session:
        assert await peers._ask(session, Address("127.0.0.1", port)) is None


async def ask_an_engine_for_its_start(port: int) -> None:
    replica = Replica("p", "2026-01-01T00:00:00Z", "127.0.0.1")
    assert await StartPoller(lambda _: None, PodQuestions())._ask("n", replica) is None


async def ask_an_engine_for_adapters(port: int) -> None:
    replica = Replica("p", "2026-01-01T00:00:00Z", "127.0.0.1")
    push = Push(replica, Goal(WantedAdapters(), "key"))
    answer = await AdapterPusher(lambda _: None, PodQuestions())._call("n", push, "GET")
    assert "does not answer" in answer.problem


async def probe_an_engine(port: int) -> None:
    await probe(Address("127.0.0.1", port), 2.0)


# The bound of each, in bytes.
QUESTIONS: dict[str, tuple[Callable[[int], Awaitable[None]], int]] = {
    "demand": (ask_a_router_for_demand, routers.LONGEST_ANSWER),
    "usage": (ask_a_router_for_usage, MAX_REPORT_BYTES),
    "start": (ask_an_engine_for_its_start, pod_questions.LARGEST_ANSWER),
    "adapters": (ask_an_engine_for_adapters, adapter_pusher.LARGEST_ANSWER),
    "probe": (probe_an_engine, 65_536),
}


@pytest.mark.thorough
@pytest.mark.parametrize("answer", [send_fields, send_body, send_line, send_packed])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_an_answer_of_200_mb_takes_no_more_memory_than_its_bound(
    question: str, answer: Callable[[asyncio.StreamWriter], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, bound = QUESTIONS[question]
    async with sender(answer) as port:
        monkeypatch.setattr(start_poller, "ENGINE_PORT", port)
        monkeypatch.setattr(adapter_pusher, "ADMIN_PORT", port)
        tracemalloc.start()
        try:
            await ask(port)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak <= 2 * bound + MARGIN
