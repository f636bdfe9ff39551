"""Many clients at once, some of whom disappear: the server stays correct, and nothing of them remains."""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from typing import Any

import psutil
import pytest
from tiers import tiered
from waiting import until

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
BLOCKS = "vllm:kv_cache_usage_perc"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def request_bytes(**fields: Any) -> bytes:
    body = json.dumps({"model": "smollm2", "prompt": "Once upon a time"} | fields).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def wait_until_idle(server: Any) -> None:
    until(lambda: server.metric(RUNNING) == 0 and server.metric(WAITING) == 0 and server.metric(BLOCKS) == 0)


def cancel_streams(port: int, count: int, generator: random.Random) -> None:
    """Start streams, and close each at a random point of its request or answer."""
    streams = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        request = request_bytes(
            stream=True, max_tokens=200, ignore_eos=True, n=generator.choice([1, 1, 1, 2])
        )
        sent = generator.choice([len(request)] * 9 + [generator.randrange(len(request))])
        connection.sendall(request[:sent])
        streams.append((connection, generator.choice([0, 1, 600]) if sent == len(request) else 0))
    generator.shuffle(streams)
    for connection, wanted in streams:
        while wanted > 0:
            wanted -= len(connection.recv(1000))
        if generator.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        connection.close()


async def statuses(port: int, requests: list[bytes]) -> list[int]:
    """Send requests one after another on a connection, and return the statuses of their answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for request in requests:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        found.append(int(head.split()[1]))
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()
    return found


@pytest.mark.parametrize("count", tiered([60, 300], 60))
async def test_health_answers_during_a_flood_of_requests(tiered_server: Any, count: int) -> None:
    valid = request_bytes(max_tokens=1)
    invalid = request_bytes(max_tokens=0, prompt="word " * 2000)
    unserved = request_bytes(model="gpt-9")
    with tiered_server.probed():
        clients = [statuses(tiered_server.port, [invalid, unserved, valid]) for _ in range(count)]
        answered = Counter(status for found in await asyncio.gather(*clients) for status in found)
    assert answered == {400: count, 404: count, 200: count}
    await asyncio.to_thread(wait_until_idle, tiered_server)


@pytest.mark.parametrize("rounds", tiered([2, 8], 2))
def test_cancelled_streams_leave_no_request_block_or_file_descriptor(tiered_server: Any, rounds: int) -> None:
    wait_until_idle(tiered_server)
    process = psutil.Process(tiered_server.pid)
    before = process.num_fds()
    generator = random.Random(0)
    with tiered_server.holding(20):
        for _ in range(rounds):
            cancel_streams(tiered_server.port, 25, generator)
        wait_until_idle(tiered_server)
    until(lambda: process.num_fds() <= before)


def test_request_that_does_not_fit_the_queue_is_refused_whole(tiered_server: Any) -> None:
    wait_until_idle(tiered_server)
    many = {"prompt": ["a"] * 1024, "n": 2, "max_tokens": 900, "ignore_eos": True}
    with tiered_server.holding(1):
        with socket.create_connection(("127.0.0.1", tiered_server.port), timeout=60) as connection:
            connection.sendall(request_bytes(**many))
            until(lambda: tiered_server.metric(RUNNING) + tiered_server.metric(WAITING) == 2048)
            with tiered_server.probed():
                refused = tiered_server.post("/v1/completions", {"model": "smollm2"} | many)
            assert (refused.status, refused.error["code"]) == (503, "queue_full")
            assert int(refused.headers["retry-after"]) > 0
            assert "2048" in refused.error["message"]
            assert tiered_server.metric(RUNNING) + tiered_server.metric(WAITING) == 2048
        wait_until_idle(tiered_server)


@pytest.mark.parametrize("stream", [False, True])
def test_refusal_of_a_full_queue_is_an_error_before_the_stream(tiered_server: Any, stream: bool) -> None:
    request = {"model": "smollm2", "prompt": ["a"] * 1024, "n": 3, "stream": stream}
    answer = tiered_server.post("/v1/completions", request)
    assert (answer.status, answer.error["param"]) == (400, "n")
