"""Shutdown of the server: a drain at the first signal, an immediate end at the second."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from engine_server.server.gate import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine_server.server.gate import Gate

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Waits for SIGTERM or SIGINT, then drains."""

    def __init__(
        self, gate: Gate, drain_timeout: float, drain_grace: float, end_requests: Callable[[], None]
    ) -> None:
        """drain_timeout: seconds, after which `end_requests` ends those still in flight.

        drain_grace: the first seconds of the drain, in which new requests are still accepted after SIGTERM.
        """
        self._gate = gate
        self._drain_timeout = drain_timeout
        self._drain_grace = drain_grace
        self._end_requests = end_requests
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def run(self) -> int:
        """Wait for a signal, drain, and return the exit status."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        first = await self._signals.get()
        drain = asyncio.create_task(self._drain(announce=first is signal.SIGTERM))
        again = asyncio.create_task(self._signals.get())
        await asyncio.wait((drain, again), return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if drain.done():
            return 0
        drain.cancel()
        number = again.result() if again.done() and not again.cancelled() else signal.SIGTERM
        logger.warning("second signal: stopping immediately")
        return 128 + number

    async def _drain(self, announce: bool) -> None:
        gate = self._gate
        gate.drain = Drain.ANNOUNCED
        logger.info("draining: %d requests in flight", gate.in_flight)
        try:
            async with asyncio.timeout(self._drain_timeout):
                if announce and not gate.loading:
                    await asyncio.sleep(self._drain_grace)
                gate.drain = Drain.CLOSED
                await gate.wait_until_idle()
        except TimeoutError:
            gate.drain = Drain.CLOSED
            if gate.in_flight:
                logger.warning("drain timeout: ending %d requests in flight", gate.in_flight)
                self._end_requests()
