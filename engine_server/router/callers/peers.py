"""The other routers: each is asked for its counts every second.

A router asks only the addresses that it was started with, or those that the DNS has for the Service, and accepts no
counts that it did not ask for.
"""

import asyncio
import logging
import socket
from dataclasses import dataclass
from time import perf_counter

import aiohttp
import msgspec

from engine_server.contract.base.bodies import read_at_most
from engine_server.contract.base.decoding import decode
from engine_server.contract.cluster.labels import METRICS_PORT
from engine_server.router.callers.engine_credentials import EngineCredentials
from engine_server.router.callers.ledger import Ledger, UsageReport
from engine_server.router.routing.endpoint import Address

log = logging.getLogger(__name__)

USAGE_PATH = "/internal/usage"
# A longer answer is not a report.
MAX_REPORT_BYTES = 16 * 1024 * 1024
RESOLVE_SECONDS = 3.0

_decoder = msgspec.json.Decoder(UsageReport)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """The addresses of the other routers, and the time between two questions to them."""

    # Of their internal ports.
    addresses: tuple[Address, ...] = ()
    # The name of a headless Service of all routers; this one may be among them.
    service: str | None = None
    service_port: int = METRICS_PORT
    # Seconds.
    interval: float = 1.0

    @property
    def alone(self) -> bool:
        """True if there are no other routers."""
        return not self.addresses and self.service is None


class Peers:
    """Asks the other routers for their counts, and balances the ledger with these."""

    def __init__(self, settings: PeerSettings, ledger: Ledger, credentials: EngineCredentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._ledger = ledger
        self._of_service: set[Address] = set()
        # Peers that did not answer last time.
        self._silent: set[Address] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.service is not None:
                tasks.create_task(self._follow_service(self._settings.service))
            if not self._settings.alone:
                tasks.create_task(self._ask_all())

    async def _ask_all(self) -> None:
        loop, interval = asyncio.get_running_loop(), self._settings.interval
        # Half of the interval, so that a router that does not answer delays nothing.
        timeout = aiohttp.ClientTimeout(total=interval / 2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                next_time = loop.time() + interval
                peers = self._of_service.union(self._settings.addresses)
                self._silent &= peers
                reports = await asyncio.gather(*(self._ask(session, peer) for peer in peers))
                self._ledger.balance(filter(None, reports), perf_counter())
                await asyncio.sleep(next_time - loop.time())

    async def _ask(self, session: aiohttp.ClientSession, peer: Address) -> UsageReport | None:
        """Return the report of another router, or None if it gives none."""
        try:
            headers = self._credentials.internal_headers
            async with session.get(f"{peer}{USAGE_PATH}", headers=headers, raise_for_status=True) as response:
                content = await read_at_most(MAX_REPORT_BYTES, response.content.iter_any())
                report = decode(_decoder.decode, content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if peer not in self._silent:
                log.warning("no counts from the router at %s: %s", peer, str(error) or "no answer in time")
                self._silent.add(peer)
            return None
        if peer in self._silent:
            log.info("the router at %s answers again", peer)
            self._silent.discard(peer)
        return report

    async def _follow_service(self, service: str) -> None:
        port = self._settings.service_port
        failing = False
        while True:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(service, port, type=socket.SOCK_STREAM)
                self._of_service = {Address(str(sockaddr[0]), port) for *_, sockaddr in found}
                failing = False
            except OSError as error:  # the addresses that were found last stay in use
                if not failing:
                    log.warning("cannot resolve %s: %s", service, error)
                failing = True
            await asyncio.sleep(RESOLVE_SECONDS)
