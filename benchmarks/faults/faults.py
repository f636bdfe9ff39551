"""The faults of engines."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import aiohttp

from benchmarks.faults.site import Site, until_live, until_ready

# Between the recovery of an engine and the next fault.
PAUSE_SECONDS = 1.0
# A stopped engine continues after this time.
STOPPED_SECONDS = 8.0


class Faults:
    """Sends signals to one engine after the other; each has recovered before the next one."""

    def __init__(self, site: Site, session: aiohttp.ClientSession) -> None:
        self._site = site
        self._session = session
        self.count = 0

    async def run(self, kind: str) -> None:
        """Repeat until it is cancelled."""
        fault: Callable[[int], Awaitable[None]] = getattr(self, kind)
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            index = self.count % 2
            self.count += 1
            await fault(index)
            await until_ready(self._session, f"http://127.0.0.1:{self._site.ports[index]}")
            await until_live(self._session, self._site)

    async def kill(self, index: int) -> None:
        engine = self._site.engines[index]
        engine.send(signal.SIGKILL)
        await engine.wait()
        await engine.start()

    async def term(self, index: int) -> None:
        engine = self._site.engines[index]
        engine.terminate()
        await engine.wait()
        await engine.start()

    async def stop(self, index: int) -> None:
        engine = self._site.engines[index]
        engine.send(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_SECONDS)
        engine.send(signal.SIGCONT)

    async def rollout(self, index: int) -> None:
        """Replace an engine by one of the other version, as a rollout forth and back does."""
        engine = self._site.engines[index]
        engine.terminate()
        await engine.wait()
        version = (self.count + 1) // 2 % 2
        self._site.engines[index] = self._site.engine(self._site.ports[index], version)
        await self._site.engines[index].start()
