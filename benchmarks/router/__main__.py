"""The router beside nginx's proxy and other routers, on this machine, all in turn; medians of the rounds.

    python -m benchmarks.router [--seconds 3] [--rounds 3] [--peers VENV] [--streams 5000]

Whole answers come from an nginx that answers immediately, streams from a process that sends 128 chunks, one at a time,
with reports of their tokens. Needs nginx and wrk (Debian has both); VENV is a virtual environment with vllm-router and
smg. CPU time is the steadiest figure on a busy machine.
"""

import argparse
import asyncio
import math
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.record import save
from benchmarks.router.engines import ENDLESS, immediate_engines, streaming_engines
from benchmarks.router.load import (
    CHUNKS,
    STREAM_CONNECTIONS,
    WHOLE_CONNECTIONS,
    Measure,
    body,
    measure,
    middle,
    open_streams,
    script,
)
from benchmarks.router.processes import resident_mb
from benchmarks.router.running import ENGINES, running
from benchmarks.router.sides import Side, starters

# By connections and name of the side.
Results = dict[int, dict[str, Measure]]


class Memory(NamedTuple):
    """Resident memory in MB (10^6 bytes)."""

    idle: float
    # With the open streams, and after they were closed.
    streams: float
    after: float


def compare(
    sides: Sequence[Side],
    connections: Iterable[int],
    flags: argparse.Namespace,
    folder: Path,
    *,
    streamed: bool,
) -> Results:
    """Measure all sides in turn, in each round."""
    scripts = {side.name: script(side, folder, streamed=streamed) for side in sides}
    taken: dict[int, dict[str, list[Measure]]] = {c: {side.name: [] for side in sides} for c in connections}
    kind = "streams" if streamed else "whole answers"
    for number in range(flags.rounds):
        print(f"{kind}: round {number + 1} of {flags.rounds}", file=sys.stderr)
        for count, rounds in taken.items():
            for side in sides:
                rounds[side.name].append(measure(side, scripts[side.name], count, flags.seconds))
    return {count: {name: middle(all_) for name, all_ in rounds.items()} for count, rounds in taken.items()}


async def memory(side: Side, pid: int, streams: int) -> Memory:
    """Return the memory of a side before, with and after open streams, or NaN if it does not open all of them."""
    idle = resident_mb(pid)
    try:
        content = body(streamed=True, prompt="open", user=ENDLESS)
        async with open_streams(side, content, streams):
            loaded = resident_mb(pid)
    except TimeoutError:
        return Memory(idle, math.nan, math.nan)
    await asyncio.sleep(1)  # the router takes note of the closed connections
    return Memory(idle, loaded, resident_mb(pid))


def table(results: Results, unit: str, per_request: int) -> str:
    """Return the figures as a Markdown table; `per_request` is the number of units in a request."""
    rows = [
        f"| connections | side | {unit}/s | p50 ms | p99 ms | failed | CPU us per {unit} |",
        "|---|---|---|---|---|---|---|",
    ]
    for connections, sides in results.items():
        for name, m in sides.items():
            cpu = f"{m.cpu_us / per_request:.1f}" if m.cpu_us else "-"
            figures = f"{m.rate * per_request:,.0f} | {m.p50_ms:.3f} | {m.p99_ms:.3f} | {m.failed} | {cpu}"
            rows.append(f"| {connections} | {name} | {figures} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the router with others.")
    parser.add_argument("--seconds", type=int, default=3, help="of each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (%(default)s)")
    parser.add_argument(
        "--peers", type=Path, metavar="VENV", help="virtual environment with vllm-router and smg"
    )
    parser.add_argument("--streams", type=int, default=5000, help="open streams for memory (%(default)s)")
    flags = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed (apt-get install wrk nginx)")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begin = starters(flags.peers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(immediate_engines, begin, folder) as sides:
            whole = compare(sides, WHOLE_CONNECTIONS, flags, folder, streamed=False)
        with running(partial(streaming_engines, CHUNKS), begin, folder) as sides:
            held = {s.name: asyncio.run(memory(s, s.pid, flags.streams)) for s in sides if s.pid}
            streamed = compare(sides, STREAM_CONNECTIONS, flags, folder, streamed=True)
    print(table(whole, "request", 1), table(streamed, "chunk", CHUNKS), sep="\n\n")
    print(f"\n| side | idle MB | {flags.streams:,} streams MB | after MB |\n|---|---|---|---|")
    for name, figures in held.items():
        print(f"| {name} | {figures.idle:.0f} | {figures.streams:.0f} | {figures.after:.0f} |")
    path = save(
        "router",
        {
            "settings": {"chunks": CHUNKS, "engines": ENGINES, **{k: str(v) for k, v in vars(flags).items()}},
            "whole": as_json(whole),
            "streams": as_json(streamed),
            "memory": {name: figures._asdict() for name, figures in held.items()},
        },
    )
    print(f"saved {path}")
    return 0


def as_json(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    return {str(c): {name: m._asdict() for name, m in sides.items()} for c, sides in results.items()}


if __name__ == "__main__":
    sys.exit(main())
