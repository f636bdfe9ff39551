"""Events by which engines report errors in streams, in the shapes of OpenAI's, Anthropic's and the responses API."""

import msgspec

from engine_server.contract.decoding import decode
from engine_server.contract.ranges import Int64


class _Detail(msgspec.Struct):
    code: str | Int64 | None = None


class _Data(msgspec.Struct):
    """The fields by which the data of an error event is known."""

    type: str | None = None
    # Of the responses API.
    code: str | Int64 | None = None
    # Of the other APIs.
    error: _Detail | None = None


_decoder = msgspec.json.Decoder(_Data)


def reported_error(event: bytes) -> str | None:
    """Return the code of the error that an event reports: "" for an error without a code, None for another event."""
    lines = event.splitlines()
    try:
        data = decode(_decoder.decode, b"".join(line[5:] for line in lines if line.startswith(b"data:")))
    except ValueError:
        return "" if b"event: error" in lines else None
    if data.error is not None:
        return str(data.error.code or "")
    return str(data.code or "") if data.type == "error" else None
