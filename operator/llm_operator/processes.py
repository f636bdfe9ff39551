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

Lines = Callable[[str], None]


class ProgramError(RuntimeError):
    """A program does not come up."""


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


@dataclass(slots=True)
class Kept:
    """A program that is run again whenever it ends, later each time that it was not even ready."""

    program: Program
    probe: Callable[[], Awaitable[None]]  # returns once the program answers
    hurry: asyncio.Event  # set: end at once
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    was_ready: bool = False

    async def run(self) -> None:
        """Until cancelled; ProgramError where it was never ready and no attempt is left."""
        lines = relayed(self.program.name)
        while True:
            async with running(self.program, lines, lines, self.hurry) as process:
                announcing = asyncio.create_task(self._announce(time.monotonic()))
                try:
                    code = await process.wait()
                finally:
                    announcing.cancel()
                    self.ready.clear()
            self.failures += 1
            what = f"{self.program.name} ended with {outcome(code)}"
            if not self.was_ready and self.failures == ATTEMPTS:
                raise ProgramError(f"{what}, {ATTEMPTS} times, and was never ready")
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.failures - 1))
            say(f"{what}; starting it again in {delay:.0f} s")
            await asyncio.sleep(delay)

    async def _announce(self, start: float) -> None:
        await self.probe()
        self.ready.set()
        self.was_ready, self.failures = True, 0
        say(f"{self.program.name} is ready after {lasted(time.monotonic() - start)}")


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
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: protocol, os.fdopen(reading, "rb")
    )
    relaying = asyncio.create_task(relay(stream, line))
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
        if process.returncode is None:
            process.terminate()
    await asyncio.wait({ended, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended


async def relay(stream: asyncio.StreamReader, line: Lines) -> None:
    """Hands on each line, of whatever length."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        for text in whole:
            line(text.decode(errors="replace").rstrip("\r"))
    if rest:
        line(rest.decode(errors="replace"))


def relayed(name: str) -> Lines:
    return lambda line: print(f"{name} | {line}", file=sys.stderr, flush=True)


def outcome(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
