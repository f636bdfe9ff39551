"""CPU time of the router for each chunk of paced streams, beside nginx's proxy and vllm-router.

    python -m benchmarks.router.paced [--streams 200] [--rate 50] [--seconds 10] [--rounds 5] [--peers VENV]

A process of its own is the engine, whose streams have `rate` chunks a second each. Unlike in
`python -m benchmarks.router` no side gets more than that: a read of a stream gets one chunk, and a CPU is left for all
processes to wake on time. Chunks of different streams come in groups, as the tokens of an engine's step do, since the
engine's timers tick each millisecond: about ten chunks a tick with 200 streams of 50 a second.
In each round all sides have their turn. The CPU time is that of a side's processes from when
all streams have begun, divided by the chunks that arrived at the client meanwhile. Needs nginx.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from benchmarks.record import save
from benchmarks.router.engines import streaming_engines
from benchmarks.router.load import OPEN_SECONDS, body, open_streams
from benchmarks.router.processes import cpu_seconds
from benchmarks.router.running import running
from benchmarks.router.sides import Side, fairlead, nginx_proxy, vllm_router


class Round(NamedTuple):
    """The figures of one side in one round."""

    cpu_us: float  # of the side, for each chunk
    rate: float  # chunks a second
    cores: float  # that all processes used: the side, the engine, the client, and the sides that had no turn


async def measure(side: Side, streams: int, seconds: float) -> Round:
    """Measure a side while it has so many streams open."""
    assert side.pid is not None
    async with open_streams(side, body(streamed=True, prompt="paced"), streams) as opened:
        chunks, own, every = (
            sum(one.chunks for one in opened),
            cpu_seconds(side.pid),
            cpu_seconds(os.getpid()),
        )
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        chunks = sum(one.chunks for one in opened) - chunks
        own, every = cpu_seconds(side.pid) - own, cpu_seconds(os.getpid()) - every
    return Round(1e6 * own / chunks, chunks / took, every / took)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the router's CPU time for each chunk of paced streams."
    )
    parser.add_argument("--streams", type=int, default=200, help="open at a time (%(default)s)")
    parser.add_argument("--rate", type=float, default=50.0, help="chunks a second of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    parser.add_argument("--peers", type=Path, metavar="VENV", help="virtual environment with vllm-router")
    flags = parser.parse_args()
    begin = [nginx_proxy, fairlead("fairlead"), *([vllm_router(flags.peers)] if flags.peers else [])]
    # No stream ends before its measurement.
    chunks = round(flags.rate * (flags.seconds + OPEN_SECONDS))
    engines = partial(streaming_engines, chunks, rate=flags.rate)
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory() as name, running(engines, begin, Path(name)) as sides:
        for number in range(flags.rounds):
            print(f"round {number + 1} of {flags.rounds}", file=sys.stderr)
            for side in sides:
                taken = uvloop.run(measure(side, flags.streams, flags.seconds))
                rounds.setdefault(side.name, []).append(taken)
    print("| side | CPU us per chunk | chunks/s | cores of all processes |\n|---|---|---|---|")
    for side_name, all_ in rounds.items():
        cpu, rate, cores = (median(column) for column in zip(*all_, strict=True))
        print(f"| {side_name} | {cpu:.1f} | {rate:,.0f} | {cores:.2f} |")
    settings = {name: str(value) for name, value in vars(flags).items()}
    figures = {name: [one._asdict() for one in all_] for name, all_ in rounds.items()}
    print(f"saved {save('router.paced', {'settings': settings, 'rounds': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
