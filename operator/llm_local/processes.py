"""Local processes whose output is forwarded line by line, and which never outlive their owner."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
# Bytes of a line of output.
LONGEST_LINE = 1 << 30

# Called with each line of output.
LineSink = Callable[[str], None]


class StartError(RuntimeError):
    """A program that does not start; the message says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command with its variables, which are added to our own."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    # Seconds from SIGTERM to SIGKILL.
    grace: float = 10.0


def say(text: str) -> None:
    print(text, flush=True)


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s"


def exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def forward_to_stderr(name: str) -> LineSink:
    """Return a sink that prints lines with `name` in front."""
    return lambda line: print(f"{name} | {line}", file=sys.stderr, flush=True)


@asynccontextmanager
async def running(
    program: Program, out: LineSink, err: LineSink, hurry: asyncio.Event
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `program` in a process group of its own, which is ended with the block."""
    # With asyncio's own pipes process.wait() would also wait until grandchildren have closed them.
    async with line_pipe(out) as stdout, line_pipe(err) as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *program.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
            # A terminal's Ctrl-C reaches this process alone, which then ends the others in order.
            process_group=0,
        )
        stdout.close()
        stderr.close()
        try:
            yield process
        finally:
            await end(process, program.grace, hurry)


@asynccontextmanager
async def line_pipe(sink: LineSink) -> AsyncIterator[IO[bytes]]:
    """Yield the writing end of a pipe whose lines go to `sink`. The block ends when all writers have closed it."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )

    async def forward() -> None:
        async for line in stream:
            sink(line.decode(errors="replace").rstrip("\r\n"))

    forwarding = asyncio.create_task(forward())
    with os.fdopen(writing, "wb") as file:
        try:
            yield file
        finally:
            file.close()
            await forwarding
            transport.close()


async def end(process: asyncio.subprocess.Process, grace: float, hurry: asyncio.Event) -> None:
    """Send SIGTERM, and after `grace` seconds or `hurry` SIGKILL to the rest of the process group."""
    ended = asyncio.create_task(process.wait())
    hurried = asyncio.create_task(hurry.wait())
    with suppress(ProcessLookupError):
        process.terminate()
    await asyncio.wait({ended, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended
