"""Load on one side: by wrk, and as many open streams."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

from benchmarks.router.engines import MODEL
from benchmarks.router.processes import cpu_seconds
from benchmarks.router.sides import Side

PATH = "/v1/chat/completions"
CHUNKS = 128
WHOLE_CONNECTIONS = (1, 32, 256)
STREAM_CONNECTIONS = (1, 32)
# Requests have this many different prompts of 1 KB in turn, since policies spread requests by their prompts.
PROMPTS = 64
PROMPT_WORDS = 95
# Opened at the same time by `open_streams`.
OPENING = 100
OPEN_SECONDS = 30
WRK = """
local requests, turn = {{}}, 0
init = function()
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  {headers}
  for number = 1, {prompts} do
    requests[number] = wrk.format(nil, nil, nil, string.gsub([==[{body}]==], "NUMBER", tostring(number), 1))
  end
end
request = function() turn = turn % {prompts} + 1; return requests[turn] end
done = function(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("RESULT %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), failed))
end
"""


class Measure(NamedTuple):
    rate: float  # requests a second
    p50_ms: float
    p99_ms: float
    failed: int
    cpu_us: float  # of the router and its children, a request


def body(*, streamed: bool, prompt: str = "NUMBER", **fields: object) -> bytes:
    """Return the body of a request of about 1 KB."""
    message = {"role": "user", "content": f"{prompt} " + "lorem ips " * PROMPT_WORDS}
    return json.dumps({"model": MODEL, "stream": streamed, "messages": [message], **fields}).encode()


def script(side: Side, folder: Path, *, streamed: bool) -> Path:
    headers = "".join(f'wrk.headers["{name}"] = "{value}" ' for name, value in side.headers.items())
    text = WRK.format(headers=headers, prompts=PROMPTS, body=body(streamed=streamed).decode())
    path = folder / f"{side.name.replace(' ', '-')}.lua"
    path.write_text(text)
    return path


def measure(side: Side, script: Path, connections: int, seconds: int) -> Measure:
    """Run wrk against a side."""
    before = cpu_seconds(side.pid) if side.pid else 0.0
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), side.url + PATH]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    spent = cpu_seconds(side.pid) - before if side.pid else 0.0
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", printed)
    assert found, printed
    requests, microseconds, p50, p99, failed = map(int, found.groups())
    return Measure(
        requests / microseconds * 1e6, p50 / 1e3, p99 / 1e3, failed, spent / max(requests, 1) * 1e6
    )


def middle(rounds: list[Measure]) -> Measure:
    """Return the medians of some rounds, and the sum of the failures."""
    rate, p50, p99, _, cpu = (median(column) for column in zip(*rounds, strict=True))
    return Measure(rate, p50, p99, sum(one.failed for one in rounds), cpu)


class Stream(asyncio.Protocol):
    """A stream of a client, which counts its chunks."""

    def __init__(self, request: bytes) -> None:
        self.chunks = 0
        self.begun = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        if self.chunks and not self.begun.done():
            self.begun.set_result(None)


@asynccontextmanager
async def open_streams(side: Side, content: bytes, count: int) -> AsyncIterator[list[Stream]]:
    """Hold streams open that have got their first chunk; each request has the body `content`."""
    loop = asyncio.get_running_loop()
    host, port = side.url.removeprefix("http://").split(":")
    lines = "".join(f"{name}: {value}\r\n" for name, value in side.headers.items())
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    turn = asyncio.Semaphore(OPENING)

    async def open_stream() -> Stream:
        async with turn:
            _, stream = await loop.create_connection(lambda: Stream(request), host, int(port))
            await stream.begun
            return stream

    async with asyncio.timeout(OPEN_SECONDS):
        streams = await asyncio.gather(*(open_stream() for _ in range(count)))
    try:
        yield streams
    finally:
        for stream in streams:
            stream.transport.abort()
