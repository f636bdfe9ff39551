"""The effect of hostile requests on others: how long engine and router don't answer, and the memory that they take.

    python -m benchmarks.attacks [--rounds 2] [--log FILE]

Starts two engines and a router as processes of their own on loopback. During each attack a thread for each of engine
and router asks for /health every 10 ms; the longest answer bounds the absence of the event loop. Memory is the peak of
the process beyond its size before the first attack: that of a second round should not be larger than the first's.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.faults.site import NAME, Site
from benchmarks.record import save

PROBE_SECONDS = 0.01
RARE = "\U0001f9a0\U00010330"


@dataclass(frozen=True)
class Attack:
    """Requests that are sent at once, and the path."""

    name: str
    path: str
    body: bytes
    times: int = 1
    # The answer is left unread for so long.
    unread_seconds: float = 0.0


def attacks() -> list[Attack]:
    """Return the attacks, with bodies of at most 32 MiB."""

    def body(**fields: Any) -> bytes:
        return json.dumps({"model": NAME, **fields}).encode()

    completions = "/v1/completions"
    wrong_values = {str(number): "x" for number in range(100_000)}
    return [
        Attack("a short request", completions, body(prompt="a", max_tokens=1)),
        Attack("400,000 wrong elements of a list", completions, body(prompt="a", logits_processors=[1] * 400_000)),
        Attack("100,000 wrong values of a dictionary", completions, body(prompt="a", logit_bias=wrong_values)),
        Attack("a million unknown values", completions, body(prompt="a", unknown=[1] * 1_000_000)),
        Attack("3 million valid values", completions, body(prompt=[[1] * 1000] * 3000)),
        Attack("a message of 12 MB of commas", "/v1/chat/completions",
               body(messages=[{"role": "user", "content": "1,2," * 3_000_000}])),
        Attack("a text of 8 million rare characters", completions, body(prompt=RARE * 2_000_000)),
        Attack("20 texts of 2 MB to tokenize", "/tokenize", body(prompt="word " * 400_000), times=20),
        Attack("a wide beam search", completions,
               body(prompt=[1] * 400, use_beam_search=True, n=8, best_of=8, max_tokens=64)),
        Attack("200 answers that nobody reads", "/tokenize", body(prompt="a b " * 20_000), 200, 2.0),
    ]  # fmt: skip


class Probe:
    """Asks for /health in a thread of its own, and keeps the longest time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        while not self._stop.wait(PROBE_SECONDS):
            started = time.perf_counter()
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            self.longest = max(self.longest, time.perf_counter() - started)
        connection.close()


def memory(pid: int, field: str) -> int:
    """Return VmRSS or VmHWM of a process, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith(field))
    return int(line.split()[1]) >> 10


@contextlib.contextmanager
def peak(pid: int) -> Iterator[Callable[[], int]]:
    """Forget the peak of a process's memory, and yield a function that returns the new one, in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    yield lambda: memory(pid, "VmHWM")


async def send(session: aiohttp.ClientSession, url: str, attack: Attack) -> str:
    """Send one request; return the status of its answer, or the error."""
    try:
        async with session.post(
            url + attack.path, data=attack.body, headers={"Content-Type": "application/json"}
        ) as response:
            await asyncio.sleep(attack.unread_seconds)
            await response.read()
            return str(response.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__


async def measure(rounds: int, log: Any) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        site = Site(log, drain_seconds=1)
        async with site.running(session):
            engine, router = site.engines[0].pid, site.router.pid
            ports = site.ports[0], int(site.url.rpartition(":")[2])
            before = memory(engine, "VmRSS"), memory(router, "VmRSS")
            for number in range(rounds):
                for attack in attacks():
                    for url, target in ((f"http://127.0.0.1:{ports[0]}", "engine"), (site.url, "router")):
                        with peak(engine) as of_engine, peak(router) as of_router:
                            with Probe(ports[0]) as one, Probe(ports[1]) as other:
                                sends: list[Awaitable[str]] = [
                                    send(session, url, attack) for _ in range(attack.times)
                                ]
                                statuses = sorted(set(await asyncio.gather(*sends)))
                            results[f"{attack.name}, to the {target}, round {number + 1}"] = {
                                "answers": " ".join(statuses),
                                "engine_ms": round(1e3 * one.longest),
                                "router_ms": round(1e3 * other.longest),
                                "engine_mib": of_engine() - before[0],
                                "router_mib": of_router() - before[1],
                            }
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="The effect of hostile requests on others.")
    parser.add_argument("--rounds", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--log", default=os.devnull, help="file for the logs of engines and router")
    flags = parser.parse_args()
    with open(flags.log, "w") as log:  # noqa: PTH123
        results = asyncio.run(measure(flags.rounds, log))
    columns = ("answers", "engine_ms", "router_ms", "engine_mib", "router_mib")
    print(f"{'':66}" + "".join(f"{each:>12}" for each in columns))
    for name, row in results.items():
        print(f"{name:66}" + "".join(f"{row[each]:>12}" for each in columns))
    print(f"saved {save('attacks', {'attacks': results})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
