"""The bodies of streams in memory: they are only needed to continue a stream, and kept packed until then."""

import asyncio
import zlib
from collections.abc import Collection
from time import perf_counter

from engine_server.router.http.exchange import Exchange, wait_for
from engine_server.router.http.wire import PackedBody
from engine_server.router.requests.relay import Relay
from engine_server.shared.abridged_body import abridge
from engine_server.shared.body_buffer import Body

# Between two looks at all streams, and the age at which one's body is packed.
SWEEP_SECONDS = 0.5
PACK_AFTER_SECONDS = 1.0
# Smaller bodies are kept as they are.
LEAST_BYTES = 4 * 1024
# 100 KB of text become 34 KB in 0.8 ms.
LEVEL = 1
# 30 MB of pictures would become 24 MB in 0.7 s.
LEVEL_OF_PICTURES = 0


class BodyPacker:
    """Packs the bodies of streams that have begun some time ago, and forgets those of streams that can't go on."""

    def __init__(self, open_attempts: Collection[Relay]) -> None:
        """open_attempts: those that are sent and have no outcome."""
        self._open = open_attempts

    async def run(self) -> None:
        """Pack bodies until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep(perf_counter())

    async def sweep(self, now: float) -> None:
        """Pack the bodies that are due at the time `now` (perf_counter)."""
        for relay in [*self._open]:
            if relay in self._open and is_old_stream(relay, now):
                await self._pack(relay)

    async def _pack(self, relay: Relay) -> None:
        client, request = relay.exchange.client, relay.exchange.request
        journal, body = relay.lifecycle.journal, request.body
        if journal is None or not journal.state.resumable:
            if request.held:
                client.pack_body(None)
        elif len(body) >= LEAST_BYTES:
            data = await asyncio.to_thread(pack, body)
            if relay in self._open:
                client.pack_body(data)


def pack(body: Body) -> bytes:
    """Return the body in the form in which it may be forgotten: compressed, unless most of it is pictures."""
    has_pictures = 2 * len(abridge(body)) < len(body)
    return zlib.compress(body, LEVEL_OF_PICTURES if has_pictures else LEVEL)


def is_old_stream(relay: Relay, now: float) -> bool:
    """Return True if the client has got events for PACK_AFTER_SECONDS."""
    began = relay.lifecycle.first_byte_at
    return relay.events is not None and began is not None and now - began >= PACK_AFTER_SECONDS


async def unpack_body(exchange: Exchange, packed: PackedBody) -> bool:
    """Restore the body of a request. Return False if it was forgotten, or if there is no room for it now."""
    request = exchange.request
    if packed.data is None or not exchange.client.claim_unpacked():
        return False
    unpacking = asyncio.get_running_loop().run_in_executor(None, zlib.decompress, packed.data)
    await wait_for(unpacking, exchange)
    request.body, request.packed = unpacking.result(), None
    return True
