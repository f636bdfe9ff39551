"""Streams through a router whose engines are killed, stopped or replaced: none may fail or differ.

    python -m benchmarks.faults [--signal kill|term|stop|rollout] [--streams 500] [--seconds 60] [--clients 12]

Starts two engines and a router as processes of their own, and records the text of each kind of request undisturbed.
Then clients repeat the requests while an engine gets the signal every few seconds and is started again; with `rollout`
it gets SIGTERM and is replaced by an engine of another model, to which no stream may be continued. A stream fails
if it breaks off, reports an error, mixes ids, or has another text than undisturbed. The exit status is then 1.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from typing import Any

import aiohttp

from benchmarks.faults.faults import Faults
from benchmarks.faults.site import Site, free_port, metrics, until_ready
from benchmarks.faults.streams import Kind, kinds, stream

REQUEST_SECONDS = 300.0


async def measure(flags: argparse.Namespace, log: Any) -> bool:
    """Run everything, print a table, and return true if no stream failed."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    requests = kinds(flags.tokens)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        site = Site(log, drain_seconds=120 if flags.signal == "rollout" else 1)
        async with site.running(session):
            expected = await undisturbed(session, site, requests, flags.signal)
            print(f"{len(requests)} kinds of requests recorded", file=sys.stderr)
            return await disturbed(session, site, requests, expected, flags)


async def undisturbed(
    session: aiohttp.ClientSession, site: Site, requests: list[Kind], fault: str
) -> dict[str, set[tuple[str, str]]]:
    """Return the text and the finish reason of each request; in a rollout, those of both versions."""
    expected: dict[str, set[tuple[str, str]]] = {kind.name: set() for kind in requests}
    url = f"http://127.0.0.1:{site.ports[0]}"
    for turn in range(2 if fault == "rollout" else 1):
        if turn:
            port = free_port()
            other = site.engine(port, 1)
            url = f"http://127.0.0.1:{port}"
            await other.start()
            await until_ready(session, url)
        for kind, text in zip(
            requests, await asyncio.gather(*(stream(session, url, kind) for kind in requests)), strict=True
        ):
            if text.errors:
                raise RuntimeError(f"{kind.name} fails undisturbed: {text.errors}")
            expected[kind.name].add((text.text, text.finish))
        if turn:
            await other.stop()
    return expected


async def disturbed(
    session: aiohttp.ClientSession,
    site: Site,
    requests: list[Kind],
    expected: dict[str, set[tuple[str, str]]],
    flags: argparse.Namespace,
) -> bool:
    streams: Counter[str] = Counter()
    failures: list[str] = []
    started = time.monotonic()
    faults = Faults(site, session)

    async def client(number: int) -> None:
        position = number
        while (
            streams.total() + flags.clients <= flags.streams
            or time.monotonic() < started + flags.seconds
            or faults.count < flags.faults
        ):
            kind = requests[position % len(requests)]
            position += 1
            text = await stream(session, site.url, kind)
            name = kind.name.rpartition(" ")[0]
            streams[name] += 1
            if (text.text, text.finish) not in expected[kind.name] and not text.errors:
                text.errors.append(f"{text.text!r} ({text.finish}) is not among {expected[kind.name]}")
            if len(text.fingerprints) > 1:
                text.errors.append(f"engines are mixed: {text.fingerprints}")
            failures.extend(f"{kind.name}: {error}" for error in text.errors[:1])

    disturbing = asyncio.create_task(faults.run(flags.signal))
    await asyncio.gather(*(client(number) for number in range(flags.clients)))
    if disturbing.done():
        disturbing.result()
    disturbing.cancel()
    await asyncio.gather(disturbing, return_exceptions=True)
    seconds = time.monotonic() - started
    for failure in failures[:20]:
        print(f"failed: {failure}")
    print(f"{'stream':<16}{'finished':>10}")
    for name, count in streams.items():
        print(f"{name:<16}{count:>10}")
    print(
        f"{streams.total()} streams in {seconds:.0f} s, {faults.count} times {flags.signal}, {len(failures)} failed"
    )
    for metric, value in (
        await metrics(session, site.metrics, "retries_total|resumed|interrupted_total")
    ).items():
        print(f"{metric} {value:.0f}")
    return not failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Streams through a router whose engines fail.")
    parser.add_argument("--signal", choices=["kill", "term", "stop", "rollout"], default="kill")
    parser.add_argument("--streams", type=int, default=500, help="at least (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="at least (%(default)s)")
    parser.add_argument("--faults", type=int, default=2, help="at least (%(default)s)")
    parser.add_argument("--clients", type=int, default=12, help="streams at a time (%(default)s)")
    parser.add_argument("--tokens", type=int, default=40, help="of each stream (%(default)s)")
    parser.add_argument("--log", default=os.devnull, help="file for the logs of engines and router")
    flags = parser.parse_args()
    with open(flags.log, "w") as log:  # noqa: PTH123
        return 0 if asyncio.run(measure(flags, log)) else 1


if __name__ == "__main__":
    sys.exit(main())
