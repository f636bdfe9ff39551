"""CPU time of the router for each chunk of paced streams, beside proxies, vllm-router and another checkout's router.

    python -m benchmarks.router.paced [--streams 200] [--rate 50] [--seconds 10] [--rounds 5] [--peers VENV]
        [--checkout FOLDER]

A process of its own is the engine, whose streams have `rate` chunks a second each. Unlike in
`python -m benchmarks.router` no side gets more than that: a read of a stream gets one chunk, and a CPU is left for all
processes to wake on time. Chunks of different streams come in groups, as the tokens of an engine's step do, since the
engine's timers tick each millisecond: about ten chunks a tick with 200 streams of 50 a second.
In each round all sides have their turn, in every second one in the opposite order. The CPU time is that of a side's
processes from when all streams have begun, divided by the chunks that arrived at the client meanwhile. A proxy on
uvloop that only copies bytes is the floor of a router in Python. Needs nginx.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from benchmarks.checkout import checkout
from benchmarks.record import save
from benchmarks.router.engines import streaming_engines
from benchmarks.router.load import OPEN_SECONDS, body, open_streams
from benchmarks.router.processes import cpu_seconds, cpu_times
from benchmarks.router.running import running
from benchmarks.router.sides import Side, copying_proxy, fairlead, nginx_proxy, vllm_router


class Round(NamedTuple):
    """The figures of one side in one round."""

    # Of the side, for each chunk.
    cpu_us: float
    user_us: float
    kernel_us: float
    # Chunks a second.
    rate: float
    # That all processes used: the side, the engine, the client, and the sides that had no turn.
    cores: float


async def measure(side: Side, streams: int, seconds: float) -> Round:
    """Measure a side while it has so many streams open."""
    assert side.pid is not None
    async with open_streams(side, body(streamed=True, prompt="paced"), streams) as opened:
        chunks = sum(one.chunks for one in opened)
        before, every = cpu_times(side.pid), cpu_seconds(os.getpid())
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        chunks = sum(one.chunks for one in opened) - chunks
        after, every = cpu_times(side.pid), cpu_seconds(os.getpid()) - every
    user = 1e6 * (after.user - before.user) / chunks
    kernel = 1e6 * (after.kernel - before.kernel) / chunks
    return Round(user + kernel, user, kernel, chunks / took, every / took)


def table(rounds: Mapping[str, Sequence[Round]]) -> str:
    """Return the medians as a Markdown table. The ratios are those of the CPU time within one round."""
    rows = [
        "| side | CPU us per chunk | user | kernel | chunks/s | cores of all processes | fairlead's CPU to it |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, all_ in rounds.items():
        cpu, user, kernel, rate, cores = (median(column) for column in zip(*all_, strict=True))
        pairs = zip(rounds["fairlead"], all_, strict=True)
        ratio = median(own.cpu_us / one.cpu_us for own, one in pairs)
        times = f"{cpu:.1f} | {user:.1f} | {kernel:.1f}"
        rows.append(f"| {name} | {times} | {rate:,.0f} | {cores:.2f} | {ratio:.2f} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the router's CPU time for each chunk of paced streams."
    )
    parser.add_argument("--streams", type=int, default=200, help="open at a time (%(default)s)")
    parser.add_argument("--rate", type=float, default=50.0, help="chunks a second of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    parser.add_argument("--peers", type=Path, metavar="VENV", help="virtual environment with vllm-router")
    parser.add_argument(
        "--checkout", type=checkout, metavar="FOLDER", help="compare with this checkout's router"
    )
    flags = parser.parse_args()
    begin = [nginx_proxy, copying_proxy, fairlead("fairlead")]
    begin += [fairlead("other", checkout=flags.checkout)] if flags.checkout else []
    begin += [vllm_router(flags.peers)] if flags.peers else []
    # No stream ends before its measurement.
    chunks = round(flags.rate * (flags.seconds + OPEN_SECONDS))
    engines = partial(streaming_engines, chunks, rate=flags.rate)
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory() as name, running(engines, begin, Path(name)) as sides:
        for number in range(flags.rounds):
            print(f"round {number + 1} of {flags.rounds}", file=sys.stderr)
            for side in sides if number % 2 == 0 else reversed(sides):
                taken = uvloop.run(measure(side, flags.streams, flags.seconds))
                rounds.setdefault(side.name, []).append(taken)
    print(table(rounds))
    settings = {name: str(value) for name, value in vars(flags).items()}
    figures = {name: [one._asdict() for one in all_] for name, all_ in rounds.items()}
    print(f"saved {save('router.paced', {'settings': settings, 'rounds': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
