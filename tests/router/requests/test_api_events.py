"""Recognition of the events by which engines report errors, in each API."""

from types import SimpleNamespace

import pytest

from engine_server.contract.wire.errors import ErrorCode
from engine_server.router.requests.api_events import CreatedResponse, created_response, reported_error
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.renderer import MessagesRenderer
from engine_server.server.api.responses.endpoint import renderer
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.http.errors import ApiError
from engine_server.server.http.event_stream import OpenAIStream


def responses_renderer():
    request = parse_request(ResponsesRequest, b'{"model": "m", "input": "a"}')
    model = SimpleNamespace(sampling_defaults={}, token_texts=None)
    return renderer(model, request, AnswerIdentity("resp_1", 1, "m", "f"))


@pytest.mark.parametrize(
    "stream",
    [
        OpenAIStream(),
        MessagesRenderer("msg_1", "m", 5, show_thinking=True, report_cached=False),
        responses_renderer(),
    ],
    ids=["openai", "anthropic", "responses"],
)
@pytest.mark.parametrize("code", [ErrorCode.DRAINING, ErrorCode.REQUEST_FAILED])
def test_code_of_an_engines_error_event_is_recognized(stream, code):
    events = [event + b"\n\n" for event in stream.error(ApiError(code, "reason")).split(b"\n\n") if event]
    assert [found for event in events if (found := reported_error(event)) is not None] == [code]


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"error"}}]}\n\n',
        b'data: {"choices":[],"error":null}\n\n',
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"draining"}}}\n\n',
        b"data: [DONE]\n\n",
        b"data: error\r\n\r\n",
        b"\n\n",
    ],
)
def test_other_events_are_not_taken_for_errors(event):
    assert reported_error(event) is None


@pytest.mark.parametrize(
    "event", [b"event: error\ndata: broken\n\n", b'data: {"error":{"code":500}}\r\n\r\n']
)
def test_errors_of_other_servers_are_recognized(event):
    assert reported_error(event) in ("", "500")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"response":{"id":"resp_1","created_at":7}}', CreatedResponse("resp_1", 7)),
        (b'{"response":{"id":"resp_1","created_at":7.5}}', CreatedResponse("resp_1", 7.5)),
        (b'{"response":{"id":1}}', CreatedResponse()),
        (b'{"response":{"id":"a","created_at":-1}}', CreatedResponse()),
        (b"broken", CreatedResponse()),
    ],
)
def test_identity_of_a_created_response_is_read_or_unknown(data, expected):
    assert created_response(b"event: response.created\ndata: " + data + b"\n\n") == expected
