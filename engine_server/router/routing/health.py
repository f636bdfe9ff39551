"""The health of endpoints: which are live, and the probes that bring the others back."""

import asyncio
import logging
from contextlib import suppress

from engine_server.router.routing.endpoint import Address, Endpoint

log = logging.getLogger(__name__)

PROBE_INTERVAL_SECONDS = 0.25
PROBE_TIMEOUT_SECONDS = 2.0


class Health:
    """Which of the known endpoints are live. One that is not is probed until its `/ready` answers 200."""

    def __init__(self) -> None:
        self._known: set[Endpoint] = set()
        # The known endpoints that are not live, with their probes.
        self.down: dict[Endpoint, asyncio.Task[None]] = {}
        # The number of times that a live endpoint was ejected.
        self.ejections = 0

    def add(self, endpoint: Endpoint, live: bool) -> None:
        """Begin to follow an endpoint; unless it is known to be live, a probe has to succeed first."""
        self._known.add(endpoint)
        if not live:
            self._begin_probe(endpoint)

    def remove(self, endpoint: Endpoint) -> None:
        """Stop following an endpoint."""
        self._known.discard(endpoint)
        if probe := self.down.pop(endpoint, None):
            probe.cancel()

    def eject(self, endpoint: Endpoint, reason: str) -> None:
        """Give no requests to an endpoint until it is ready again. One that is not live or not known is left as is."""
        if self.is_live(endpoint):
            log.warning("ejected endpoint %s: %s", endpoint.address, reason)
            self.ejections += 1
            self._begin_probe(endpoint)

    def is_live(self, endpoint: Endpoint) -> bool:
        """Return True if the endpoint may be given requests."""
        return endpoint in self._known and endpoint not in self.down

    def _begin_probe(self, endpoint: Endpoint) -> None:
        self.down[endpoint] = asyncio.get_running_loop().create_task(self._probe_until_ready(endpoint))

    async def _probe_until_ready(self, endpoint: Endpoint) -> None:
        while not await is_ready(endpoint.address):  # noqa: ASYNC110 - the engine is another process
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        del self.down[endpoint]
        log.info("endpoint %s is ready", endpoint.address)


async def is_ready(address: Address) -> bool:
    """Return True if `GET /ready` answers 200 within PROBE_TIMEOUT_SECONDS."""
    writer = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /ready HTTP/1.1\r\nHost: fairlead\r\nConnection: close\r\n\r\n")
            status_line = await reader.readline()
            return status_line.split(b" ")[1:2] == [b"200"]
    except (OSError, ValueError):
        return False
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.close()
