"""Answers that are built whole: what they take counts for their sender until the client has read them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from engine_server.server.http.memory_share import MemoryShare

# Of all of them together, in bytes.
MAX_BYTES = 512 << 20
# In bytes. A smaller answer is sent at once, and not counted.
PIECE = 1 << 18

# Of the request that a task answers; it returns what it took after the answer.
answer_memory: ContextVar[MemoryShare | None] = ContextVar("answer memory", default=None)


def reserve(num_bytes: int) -> None:
    """Take memory for the answer of this task's request. Raises ApiError 503 if there is none for its sender."""
    memory = answer_memory.get()
    if memory is not None and num_bytes > PIECE and not memory.resize(num_bytes):
        message = (
            f"there is no room for an answer of {num_bytes} bytes in the {MAX_BYTES} bytes for those that clients have "
            "not read yet, of which each sender has a share; try again later"
        )
        raise ApiError(ErrorCode.BUFFER_FULL, message, retry_after=1)


class BuiltAnswer(Response):
    """An answer with a whole body. A large one is sent in pieces, each of which waits until the client reads."""

    def __init__(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        super().__init__(body, headers=headers, media_type="application/json")
        memory = answer_memory.get()
        if memory is not None and len(body) > max(PIECE, memory.num_bytes):
            memory.add(len(body) - memory.num_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= PIECE:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), PIECE):
            piece = bytes(body[start : start + PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
