"""The connections of clients to one port."""

import asyncio
import logging

from engine_server.contract.base.listening import listen_on
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.client_connection import Application, ClientConnection
from engine_server.router.http.forwarded_fields import REQUEST_FIELDS, ForwardedFields
from engine_server.router.http.limits import Limits
from engine_server.router.http.reading_turn import ReadingTurn
from engine_server.router.http.unread_answers import UnreadAnswers
from engine_server.router.rejections import Reason, Rejections, Sender
from engine_server.shared.listener import Listener
from engine_server.shared.places import Places

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 4096


class Clients:
    """Accepts connections on a port, and closes them."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        budget: BodyBudget,
        unread: UnreadAnswers,
        rejections: Rejections,
        forwarded: ForwardedFields = REQUEST_FIELDS,
    ) -> None:
        self._application = application
        self._limits = limits
        self._budget = budget
        self._unread = unread
        self._reading = ReadingTurn()
        self._places = Places(
            limits.connections, lambda: rejections.add(Sender.CLIENT, Reason.IDLE_CONNECTION)
        )
        self._forwarded = forwarded
        self._open: set[ClientConnection] = set()
        # Each connection is closed after its current answer.
        self._leaving = False

    def listen(self, host: str, port: int) -> Listener:
        """Accept connections; port 0 takes a free one. Raises ListenError."""
        return Listener(listen_on(host, port, LISTEN_BACKLOG), self._accept, self._places)

    async def sweep(self) -> None:
        """End what takes too long on the connections, for as long as this runs.

        A sweep that is late shows that the router itself stood still: what arrived meanwhile is not read yet, and its
        lateness does not count.
        """
        loop, limits = asyncio.get_running_loop(), self._limits
        swept_at = loop.time()
        while True:
            await asyncio.sleep(limits.sweep_seconds)
            now = loop.time()
            passed, swept_at = now - swept_at, now
            was_late = passed > limits.sweep_seconds + limits.late_seconds
            for client in [*self._open]:
                if was_late:
                    client.extend(now, passed - limits.sweep_seconds)
                client.sweep(now)

    def leave(self) -> None:
        """Close every connection after its current answer, and those that are still accepted."""
        self._leaving = True
        for client in self._open:
            client.closing = True

    async def drain(self, seconds: float) -> None:
        """Close connections once their requests are answered, and wait for that, but no longer than `seconds`."""
        for client in [*self._open]:
            client.close_when_idle()
        if self._open:
            await asyncio.wait([client.closed for client in self._open], timeout=seconds)

    def abort(self) -> None:
        """Reset all connections."""
        if self._open:
            log.warning("aborting %d connections", len(self._open))
        for client in [*self._open]:
            client.abort()

    def _accept(self) -> ClientConnection:
        return ClientConnection(
            self._application,
            self._limits,
            self._budget,
            self._unread,
            self._reading,
            self._forwarded,
            self._places,
            self._add,
        )

    def _add(self, client: ClientConnection) -> None:
        client.closing = self._leaving
        self._open.add(client)
        client.closed.add_done_callback(lambda _: self._open.discard(client))
