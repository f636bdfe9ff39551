"""The queue of new requests' messages to the core, which delays them while a pause waits for earlier requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine_server.requests.messages import AddRequest


class Barrier:
    """One reason to hold requests back. `lifted`: all requests were sent before the barrier's end."""

    lifted = False


class AdmissionQueue:
    """A queue that sends requests immediately, or in order of arrival once the last barrier ends."""

    def __init__(self, send: Callable[[AddRequest], None]) -> None:
        self._send = send
        self._barriers: set[Barrier] = set()
        # By the caller's id.
        self._held: dict[str, Sequence[AddRequest]] = {}

    def __contains__(self, request_id: str) -> bool:
        """Return True for a request that is held back."""
        return request_id in self._held

    def put(self, request_id: str, messages: Sequence[AddRequest]) -> None:
        if self._barriers:
            self._held[request_id] = messages
        else:
            for message in messages:
                self._send(message)

    def withdraw(self, request_id: str) -> None:
        """Drop a request if it is held back."""
        self._held.pop(request_id, None)

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
        held, self._held = self._held, {}
        for messages in held.values():
            for message in messages:
                self._send(message)
