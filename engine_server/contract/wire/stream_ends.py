"""The end of a stream of events that breaks off, in the shape of each API; engines and routers end it in one way."""

from collections.abc import Callable
from typing import Literal

import msgspec

# The last event of a stream of OpenAI's completions and chat APIs, whole or broken.
DONE = b"data: [DONE]\n\n"

# The ids of responses begin with it.
RESPONSE_ID = "resp_"

encode = msgspec.json.Encoder().encode


class FailureBody(msgspec.Struct):
    """The reason why a response failed."""

    message: str
    code: str = "server_error"


class ErrorEvent(msgspec.Struct, kw_only=True):
    """A failure in a stream of the responses API."""

    type: str = "error"
    sequence_number: int
    code: str
    message: str
    param: str | None


class ResponseEvent(msgspec.Struct):
    """A change of the whole response: created, in progress, or its end."""

    type: str
    sequence_number: int
    response: msgspec.Raw


class FailedResponse(msgspec.Struct, kw_only=True):
    """The response of a broken stream, as far as a program that knows none of its content can tell."""

    id: str
    object: str = "response"
    created_at: int
    model: str
    status: Literal["in_progress", "failed"]
    error: FailureBody | None = None
    incomplete_details: None = None
    output: list[msgspec.Raw] = []
    usage: None = None


def openai_end(body: bytes) -> bytes:
    """Return the end of a stream of completions or chat. body: of an error."""
    return b"data: %b\n\n" % body + DONE


def anthropic_end(body: bytes) -> bytes:
    """Return the end of a stream of Anthropic's messages. body: of an error."""
    return b"event: error\ndata: %b\n\n" % body


def responses_end(
    num_events: int,
    code: str,
    message: str,
    param: str | None,
    response: Callable[[FailureBody | None], bytes],
) -> bytes:
    """Return the end of a stream of the responses API: an error, then the response's failure, for which clients wait.

    num_events: those before, by which events are numbered. A stream without any begins with the response's creation,
    before which clients refuse other events. response: returns the JSON of the response, failed or in progress.
    """
    beginning = b""
    if num_events == 0:
        beginning = response_event("response.created", 0, response(None))
        num_events = 1
    error = ErrorEvent(sequence_number=num_events, code=code, message=message, param=param)
    failed = response_event("response.failed", num_events + 1, response(FailureBody(message)))
    return beginning + named_event(error.type, error) + failed


def response_event(kind: str, number: int, response: bytes) -> bytes:
    """Return the event of a change of the whole response, whose JSON is given."""
    return named_event(kind, ResponseEvent(kind, number, msgspec.Raw(response)))


def named_event(name: str, data: msgspec.Struct) -> bytes:
    """Return an event with a name, as Anthropic's messages and the responses API have them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
