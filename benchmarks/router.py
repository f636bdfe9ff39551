"""The router's overhead: wrk against an nginx that answers immediately, directly and through the router, alternating.

    python -m benchmarks.router [--seconds 3] [--rounds 5]

Needs nginx and wrk (Debian has both). The medians of the rounds are printed and saved under benchmarks/results/.
The router's CPU time per request is the steadiest figure on a busy machine.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.record import save

CONNECTIONS = (1, 32)
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "bench",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 250, "completion_tokens": 3, "total_tokens": 253},
    }
)
PROMPT = {"model": "bench", "messages": [{"role": "user", "content": "lorem ips " * 95}]}
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600; client_body_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; default_type application/json; location / {{ return 200 '{answer}'; }} }}
}}
"""
WRK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
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
    router_cpu_us: float  # a request


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(20)


def await_answer(url: str) -> None:
    request = urllib.request.Request(url, json.dumps(PROMPT).encode())
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(request, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(url: str, script: Path, connections: int, seconds: int, router: int) -> Measure:
    before = cpu_seconds(router)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    spent = cpu_seconds(router) - before
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", said)
    assert found, said
    requests, microseconds, p50, p99, failed = map(int, found.groups())
    return Measure(requests / microseconds * 1e6, p50 / 1e3, p99 / 1e3, failed, spent / requests * 1e6)


def middle(rounds: list[Measure]) -> Measure:
    rate, p50, p99, _, cpu = (median(column) for column in zip(*rounds, strict=True))
    return Measure(rate, p50, p99, sum(one.failed for one in rounds), cpu)


def bench(seconds: int, rounds: int) -> dict[int, dict[str, Measure]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mock, port = free_port(), free_port()
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=mock, answer=ANSWER))
        script = folder / "post.lua"
        script.write_text(WRK.replace("{body}", json.dumps(PROMPT)))
        urls = {
            "direct": f"http://127.0.0.1:{mock}/v1/chat/completions",
            "router": f"http://127.0.0.1:{port}/v1/chat/completions",
        }
        router = [
            sys.executable,
            "-m",
            "engine_server.cli",
            "router",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        endpoint = ["--endpoint", f"bench=http://127.0.0.1:{mock}"]
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        with process(nginx, "-c", str(folder / "nginx.conf")), process(*router, *endpoint) as running:
            taken: dict[int, dict[str, list[Measure]]] = {c: {way: [] for way in urls} for c in CONNECTIONS}
            for url in urls.values():
                await_answer(url)
            for number in range(rounds):
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
                for connections in CONNECTIONS:
                    for way, url in urls.items():
                        one = measure(url, script, connections, seconds, running.pid)
                        taken[connections][way].append(one)
    return {c: {way: middle(all_) for way, all_ in ways.items()} for c, ways in taken.items()}


def table(results: dict[int, dict[str, Measure]]) -> str:
    rows = [
        f"{'connections':>11}  {'way':7}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'failed':>8}{'CPU us':>8}"
    ]
    for connections, ways in results.items():
        for way, m in ways.items():
            cpu = f"{m.router_cpu_us:8.1f}" if way == "router" else ""
            figures = f"{m.rate:11.0f}{m.p50_ms:9.3f}{m.p99_ms:9.3f}{m.failed:8}{cpu}"
            rows.append(f"{connections:>11}  {way:7}{figures}")
        added = ways["router"].p50_ms - ways["direct"].p50_ms
        rows.append(f"{'':>11}  added  {'':11}{added:9.3f}")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the overhead of the router.")
    parser.add_argument("--seconds", type=int, default=3, help="of each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    flags = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed (apt-get install wrk nginx)")
    results = bench(flags.seconds, flags.rounds)
    print(table(results))
    told = {
        "settings": {"seconds": flags.seconds, "rounds": flags.rounds, "body_bytes": len(json.dumps(PROMPT))},
        "results": {str(c): {way: m._asdict() for way, m in ways.items()} for c, ways in results.items()},
    }
    print(f"saved {save('router', told)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
