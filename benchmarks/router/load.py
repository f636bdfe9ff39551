"""Load on one side: by wrk, and as many open streams."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.router.engines import ENDLESS, MODEL
from benchmarks.router.processes import cpu_seconds
from benchmarks.router.sides import Side

PATH = "/v1/chat/completions"
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


@asynccontextmanager
async def open_streams(side: Side, count: int) -> AsyncIterator[None]:
    """Hold streams open that have got their first chunk."""
    host, port = side.url.removeprefix("http://").split(":")
    content = body(streamed=True, prompt="open", user=ENDLESS)
    lines = "".join(f"{name}: {value}\r\n" for name, value in side.headers.items())
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    turn = asyncio.Semaphore(OPENING)

    async def open_stream() -> asyncio.StreamWriter:
        async with turn:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            await reader.readuntil(b"data: ")
            return writer

    async with AsyncExitStack() as stack, asyncio.timeout(OPEN_SECONDS):
        for writer in await asyncio.gather(*(open_stream() for _ in range(count))):
            stack.callback(writer.transport.abort)
        yield
