"""Events that a router reads in streams of OpenAI's, Anthropic's and the responses API."""

from typing import Annotated

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Int64
from engine_server.contract.wire.continuation import AnswerId

DATA = b"data:"
# The first event of a response. An engine that fails before it has any sends it with the error that follows.
CREATED = b"event: response.created\n"


class _Detail(msgspec.Struct):
    code: str | Int64 | None = None


class _Error(msgspec.Struct):
    """The fields by which the data of an error event is known."""

    type: str | None = None
    # Of the responses API.
    code: str | Int64 | None = None
    # Of the other APIs.
    error: _Detail | None = None


class CreatedResponse(msgspec.Struct):
    """The identity of a response, which its last event must have too: clients compare them."""

    id: AnswerId = ""
    # Seconds since the epoch.
    created_at: Annotated[float, msgspec.Meta(ge=0, le=1 << 40)] = 0


class _Created(msgspec.Struct):
    response: CreatedResponse


_error_decoder = msgspec.json.Decoder(_Error)
_created_decoder = msgspec.json.Decoder(_Created)


def reported_error(event: bytes) -> str | None:
    """Return the code of the error that an event reports: "" for an error without a code, None for another event."""
    try:
        data = decode(_error_decoder.decode, data_of(event))
    except ValueError:
        return "" if b"event: error" in event.splitlines() else None
    if data.error is not None:
        return str(data.error.code or "")
    return str(data.code or "") if data.type == "error" else None


def created_response(event: bytes) -> CreatedResponse:
    """Return the identity in the first event of a response; an empty one if it has none."""
    try:
        return decode(_created_decoder.decode, data_of(event)).response
    except ValueError:
        return CreatedResponse()


def data_of(event: bytes) -> bytes:
    return b"".join(line.removeprefix(DATA) for line in event.splitlines() if line.startswith(DATA))
