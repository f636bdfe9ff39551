"""Supervision of a program: wait until it is ready, and restart it when it ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from llm_local.processes import (
    Program,
    StartError,
    exit_text,
    forward_to_stderr,
    running,
    say,
    seconds_text,
)

# Seconds before a program that ended is restarted.
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
# Attempts to start a program that was never ready.
ATTEMPTS = 3


async def supervise(
    program: Program, probe: Callable[[], Awaitable[None]], was_ready: asyncio.Event, hurry: asyncio.Event
) -> None:
    """Run `program` and restart it whenever it ends, after a delay that doubles while it does not become ready.

    `probe` returns once the program is ready; then `was_ready` is set. Raises StartError after `ATTEMPTS` attempts if
    it never was. `hurry` skips the grace period of a cancelled program.
    """
    lines = forward_to_stderr(program.name)
    failures = 0

    async def announce() -> None:
        start = time.monotonic()
        await probe()
        was_ready.set()
        say(f"{program.name} is ready after {seconds_text(time.monotonic() - start)}")

    while True:
        async with running(program, lines, lines, hurry) as process:
            announcing = asyncio.create_task(announce())
            try:
                code = await process.wait()
            finally:
                announcing.cancel()
        failures = failures + 1 if announcing.cancelled() else 1
        ended = f"{program.name} ended with {exit_text(code)}"
        if failures == ATTEMPTS and not was_ready.is_set():
            raise StartError(f"{ended}, {ATTEMPTS} times, and was never ready")
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1))
        say(f"{ended}; restarting it in {delay:.0f} s")
        await asyncio.sleep(delay)
