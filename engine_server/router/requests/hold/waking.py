"""The wake of deployments at zero replicas, for which requests wait."""

import asyncio
import logging

from engine_server.contract.cluster.api import Key
from engine_server.router.backoff import Backoff
from engine_server.router.routing.waker import WakeError, Waker

log = logging.getLogger(__name__)

# Between attempts after failures, doubling up to the longest.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


class Wakes:
    """Wakes each deployment once for each time that it was scaled to zero; failures are logged and retried."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[Waker, asyncio.Task[None]]] = {}

    def start(self, key: Key, waker: Waker) -> None:
        """Begin to wake a deployment, unless this waker has done so or is about to."""
        if key in self._last:
            last, task = self._last[key]
            if last == waker:
                return
            task.cancel()
        self._last[key] = waker, asyncio.get_running_loop().create_task(wake(key, waker))

    def stop(self, key: Key) -> None:
        """Stop waking a deployment that is awake, or that nothing waits for; the next start wakes it again."""
        if key in self._last:
            _, task = self._last.pop(key)
            task.cancel()

    def stop_all(self) -> None:
        """Stop waking all deployments."""
        for key in [*self._last]:
            self.stop(key)


async def wake(key: Key, waker: Waker) -> None:
    """Wake a deployment, with growing pauses between failures."""
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        try:
            await waker.wake()
        except WakeError as error:
            log.warning("failed to wake %s, retrying: %s", key, error)
            await backoff.wait()
        else:
            log.info("woke %s: requests wait for a replica", key)
            return
