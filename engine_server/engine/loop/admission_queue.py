"""The queue of new requests' messages to the core, which delays them while a pause waits for earlier requests."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine_server.requests.messages import AddRequest


class Barrier:
    """One reason to hold requests back. `lifted`: all requests were sent before the barrier's end."""

    lifted = False


class HeldRequest(NamedTuple):
    """A request's message to the core."""

    message: AddRequest
    # Ends the request at its deadline, if it has one.
    timer: asyncio.TimerHandle | None


class AdmissionQueue:
    """Sends requests at once, or in their order once no barrier stands any more. Used on one event loop."""

    def __init__(self, send: Callable[[AddRequest], None], expire: Callable[[AddRequest], None]) -> None:
        """expire: called with the message of a request that is dropped because its deadline has passed."""
        self._send = send
        self._expire = expire
        self._barriers: set[Barrier] = set()
        # By the caller's id.
        self._held: dict[str, HeldRequest] = {}

    def __contains__(self, request_id: str) -> bool:
        """Return True for a request that is held back."""
        return request_id in self._held

    def put(self, request_id: str, message: AddRequest) -> None:
        if self._barriers:
            self._held[request_id] = HeldRequest(message, self._timer(request_id, message.deadline))
        else:
            self._send(message)

    def withdraw(self, request_id: str) -> None:
        """Drop a request if it is held back."""
        held = self._held.pop(request_id, None)
        if held is not None and held.timer is not None:
            held.timer.cancel()

    @contextmanager
    def closed(self) -> Iterator[Barrier]:
        """Hold requests back for the context's duration, unless `open` lifts the barrier."""
        barrier = Barrier()
        self._barriers.add(barrier)
        try:
            yield barrier
        finally:
            self._barriers.discard(barrier)
            if not self._barriers:
                self._flush()

    def open(self) -> None:
        """Lift every barrier and send all held requests."""
        for barrier in self._barriers:
            barrier.lifted = True
        self._barriers.clear()
        self._flush()

    def _flush(self) -> None:
        for request_id, held in list(self._held.items()):
            self.withdraw(request_id)
            self._send(held.message)

    def _timer(self, request_id: str, deadline: float | None) -> asyncio.TimerHandle | None:
        """Start a timer that ends a request at its deadline, a time of the monotonic clock."""
        if deadline is None:
            return None
        delay = max(0.0, deadline - time.monotonic())
        return asyncio.get_running_loop().call_later(delay, self._end, request_id)

    def _end(self, request_id: str) -> None:
        self._expire(self._held.pop(request_id).message)
