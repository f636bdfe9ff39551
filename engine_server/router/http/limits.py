"""The limits on a client's requests and on its connection."""

import sys
from dataclasses import dataclass

from engine_server.shared.idle_timeout import DEFAULT_IDLE_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes and times in seconds, beyond which a request is refused or a connection closed."""

    # The request line and the header fields together.
    head: int = 64 * 1024
    # Path and query.
    target: int = 8 * 1024
    # Number of header fields.
    fields: int = 128
    # With 0, chunks are refused too, though they may end up as no body.
    body: int = 32 * 1024 * 1024
    # Trailers and chunk extensions; more chunk headers than this are accepted in proportion to the body.
    framing: int = 64 * 1024

    # Connections to the port.
    connections: int = sys.maxsize

    head_seconds: float = 10.0
    # Between two pieces of a body.
    piece_seconds: float = 30.0
    body_seconds: float = 300.0
    # Until the bodies of other requests leave room for one.
    room_seconds: float = 10.0
    # In which a client that has answers to read acknowledges less than LEAST_RATE.
    unread_seconds: float = 60.0
    # A kept connection between two requests.
    idle_seconds: float = DEFAULT_IDLE_TIMEOUT_SECONDS
    # The rest of a refused request is read and discarded, so that the client gets to read the refusal.
    linger_seconds: float = 2.0
    # Between two sweeps over the times of all connections.
    sweep_seconds: float = 1.0
    # A sweep that is later than this extends all times: the router itself stood still.
    late_seconds: float = 0.5
