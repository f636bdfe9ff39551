"""Mock engines: an nginx that answers immediately, and a process that streams chunks with reports of their tokens.

python -m benchmarks.router.engines PORT PORT [--chunks 128] [--rate 50]
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import httptools
import uvloop

from benchmarks.router.processes import process, python

MODEL = "bench"
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 250, "completion_tokens": 3, "total_tokens": 253},
    }
)
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]})
INFO = json.dumps({"model_id": MODEL, "model_path": MODEL, "is_generation": True})
# The peers ask for a model list and for information when they start.
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600;
  client_body_temp_path {folder}; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    {listens} default_type application/json;
    location /v1/models {{ return 200 '{models}'; }}
    location ~ ^/(get_server_info|server_info|get_model_info|model_info)$ {{ return 200 '{info}'; }}
    location / {{ return 200 '{answer}'; }}
  }}
}}
"""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: bench\r\n"
    b"Fairlead-Load: running=1, waiting=0, room=100, kv=0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# A stream whose request has this text as its user ends only when the client leaves, after its first chunk.
ENDLESS = "endless"


def nginx() -> str:
    return shutil.which("nginx") or "/usr/sbin/nginx"


@contextmanager
def immediate_engines(ports: list[int], folder: Path) -> Iterator[None]:
    """Run an nginx that answers each request on these ports with the same small answer."""
    config = folder / "engines.conf"
    listens = " ".join(f"listen 127.0.0.1:{port};" for port in ports)
    config.write_text(NGINX.format(folder=folder, listens=listens, models=MODELS, info=INFO, answer=ANSWER))
    with process(nginx(), "-c", str(config), log=folder / "engines.log"):
        yield


@contextmanager
def streaming_engines(
    chunks: int, ports: list[int], folder: Path, *, rate: float | None = None
) -> Iterator[None]:
    """Run a process that answers each request on these ports with a stream, of `rate` chunks a second if given."""
    pace = [] if rate is None else [f"--rate={rate}"]
    module = python("benchmarks.router.engines", *map(str, ports), f"--chunks={chunks}", *pace)
    with process(*module, log=folder / "streams.log"):
        yield


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(number: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f" word{number % 10}"}, "finish_reason": None}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: " + json.dumps({**body, "choices": [choice]}).encode() + b"\n\n"


def stream(chunks: int, *, reported: bool) -> list[bytes]:
    """Return the pieces of a stream, one for each chunk, with a report before each event if it is `reported`."""
    pieces: list[bytes] = []
    for number in range(chunks):
        last = number == chunks - 1
        data = event(number) + (b"data: [DONE]\n\n" if last else b"")
        if reported:
            report: dict[str, object] = {"seed": 1, "token_ids": [number], "events": 2 if last else 1}
            if number == 0:
                report |= {"id": "chatcmpl-1", "created": 1}
            if last:
                report |= {"usage": {"prompt_tokens": 250, "completion_tokens": chunks}}
            data = b": fairlead " + json.dumps(report, separators=(",", ":")).encode() + b"\n" + data
        pieces.append(chunk(data) + (b"0\r\n\r\n" if last else b""))
    return pieces


class StreamingEngine(asyncio.Protocol):
    """Answers a POST with a stream whose chunks are written one at a time, and a GET with information.

    pause: the time in seconds between two chunks of a stream that is asked for. Streams begin within one pause, so that
    they spread evenly over it.
    """

    def __init__(self, plain: list[bytes], reported: list[bytes], pause: float) -> None:
        self._plain = plain
        self._reported = reported
        self._pause_of_streams = pause
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._reports = self._endless = False
        self._pause = self._pause_of_streams

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reports = self._reports or name.lower() == b"fairlead-report-tokens"

    def on_body(self, data: bytes) -> None:
        self._endless = self._endless or ENDLESS.encode() in data
        if b'"stream":false' in data.replace(b" ", b""):  # routers may write the body anew
            self._pause = 0.0

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"POST":
            pieces = self._reported if self._reports else self._plain
            begin = random.uniform(0, self._pause)
            self._loop.call_later(begin, self._send, STREAM_HEAD + pieces[0], iter(pieces[1:]))
        else:
            body = (MODELS if self._url.startswith(b"/v1/models") else INFO).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self._transport.write(head % len(body) + body)

    def _send(self, piece: bytes, rest: Iterator[bytes]) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(piece)
        if not self._endless and (following := next(rest, None)) is not None:
            self._loop.call_later(self._pause, self._send, following, rest)


async def serve(ports: list[int], chunks: int, pause: float) -> None:
    plain, reported = stream(chunks, reported=False), stream(chunks, reported=True)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    for port in ports:
        engine = partial(StreamingEngine, plain, reported, pause)
        await loop.create_server(engine, "127.0.0.1", port, backlog=4096)
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer each request with a stream.")
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--rate", type=float, help="chunks a second of each stream (as many as it can send)")
    flags = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(flags.ports, flags.chunks, 1 / flags.rate if flags.rate else 0.0))


if __name__ == "__main__":
    main()
