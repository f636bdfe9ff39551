"""Which endpoints are fit: those that fail are put aside, and asked until they say that they are ready."""

import asyncio
import logging
from contextlib import suppress

from .endpoints import Address, Endpoint
from .metrics import Metrics

log = logging.getLogger(__name__)

PERIOD = 0.25
PROBE_TIMEOUT = 2.0


class Health:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._probes: dict[Endpoint, asyncio.Task[None]] = {}

    def eject(self, endpoint: Endpoint, reason: str) -> None:
        if endpoint.live and endpoint.routes:
            log.warning("endpoint %s is out: %s", endpoint.address, reason)
            self._metrics.ejections += 1
            endpoint.mark(live=False)
            self.watch(endpoint)

    def watch(self, endpoint: Endpoint) -> None:
        """Ask until it is ready, then let it have requests."""
        if endpoint not in self._probes:
            self._probes[endpoint] = asyncio.get_running_loop().create_task(self._until_ready(endpoint))

    def forget(self, endpoint: Endpoint) -> None:
        if probe := self._probes.pop(endpoint, None):
            probe.cancel()

    async def _until_ready(self, endpoint: Endpoint) -> None:
        while not await ready(endpoint.address):  # noqa: ASYNC110 - the engine is another process
            await asyncio.sleep(PERIOD)
        del self._probes[endpoint]
        endpoint.mark(live=True)
        log.info("endpoint %s is in", endpoint.address)


async def ready(address: Address) -> bool:
    """Whether GET /ready answers 200."""
    writer = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /ready HTTP/1.1\r\nHost: fairlead\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            return status.split(b" ")[1:2] == [b"200"]
    except (OSError, ValueError):
        return False
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.close()
