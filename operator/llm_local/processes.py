"""Programs as processes of this machine: lines relayed, run again when they end, and never left behind."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0  # seconds before a program that ended is started again
ATTEMPTS = 3  # of a program that was never ready
LONGEST_LINE = 1 << 30

Lines = Callable[[str], None]


class StartError(RuntimeError):
    """Something does not come up, and the message says why."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # beside our own
    grace: float = 10.0  # seconds from SIGTERM to SIGKILL


def say(text: str) -> None:
    print(text, flush=True)


def lasted(seconds: float) -> str:
    return f"{seconds:.1f} s"


async def keep(
    program: Program, probe: Callable[[], Awaitable[None]], was_ready: asyncio.Event, hurry: asyncio.Event
) -> None:
    """Runs it again whenever it ends, later each time that it was not even ready; `probe` returns once it is.
    StartError where it never was and no attempt is left."""
    lines = relayed(program.name)
    failures = 0

    async def announce() -> None:
        start = time.monotonic()
        await probe()
        was_ready.set()
        say(f"{program.name} is ready after {lasted(time.monotonic() - start)}")

    while True:
        async with running(program, lines, lines, hurry) as process:
            announcing = asyncio.create_task(announce())
            try:
                code = await process.wait()
            finally:
                announcing.cancel()
        failures = failures + 1 if announcing.cancelled() else 1
        ended = f"{program.name} ended with {outcome(code)}"
        if failures == ATTEMPTS and not was_ready.is_set():
            raise StartError(f"{ended}, {ATTEMPTS} times, and was never ready")
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1))
        say(f"{ended}; starting it again in {delay:.0f} s")
        await asyncio.sleep(delay)


@asynccontextmanager
async def running(
    program: Program, out: Lines, err: Lines, hurry: asyncio.Event
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`program` as a process, in a group of its own that is gone when the block is left."""
    # Pipes of our own: asyncio's hold process.wait() back until grandchildren have closed them too.
    async with piped(out) as stdout, piped(err) as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *program.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
            process_group=0,  # a terminal's Ctrl-C is for us, who then end it in order
        )
        stdout.close()
        stderr.close()
        try:
            yield process
        finally:
            await end(process, program.grace, hurry)


@asynccontextmanager
async def piped(line: Lines) -> AsyncIterator[IO[bytes]]:
    """A pipe's end to write to, whose lines are handed on; left once all who write have ended."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )

    async def relay() -> None:
        async for text in stream:
            line(text.decode(errors="replace").rstrip("\r\n"))

    relaying = asyncio.create_task(relay())
    with os.fdopen(writing, "wb") as file:
        try:
            yield file
        finally:
            file.close()
            await relaying
            transport.close()


async def end(process: asyncio.subprocess.Process, grace: float, hurry: asyncio.Event) -> None:
    """SIGTERM, and after the grace SIGKILL to what is left of the group."""
    ended = asyncio.create_task(process.wait())
    hurried = asyncio.create_task(hurry.wait())
    with suppress(ProcessLookupError):
        process.terminate()
    await asyncio.wait({ended, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended


def relayed(name: str) -> Lines:
    return lambda line: print(f"{name} | {line}", file=sys.stderr, flush=True)


def outcome(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
