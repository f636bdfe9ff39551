"""Rendering of the answers of the responses API, parsed by the types of OpenAI's own client."""

import asyncio
import json
import math
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engine_server.contract.wire.continuation import Resume
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.logprobs import Logprob
from engine_server.server.api.responses.body import RequestEcho
from engine_server.server.api.responses.renderer import ResponseRenderer
from engine_server.server.generation.events import (
    ChoiceDelta,
    Finish,
    GenerationFinished,
    Part,
    Reasoning,
    Text,
    TokenCounts,
    ToolCall,
)
from engine_server.server.http.errors import ApiError

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
STOP = Finish("stop", None)
USAGE = TokenCounts(20, 9, cached_tokens=16, reasoning_tokens=2)
PARTS: list[Part] = [
    Reasoning("They want"),
    Reasoning(" the weather."),
    Text("I look"),
    Text(" it up."),
    ToolCall(0, "call_1", "get_weather", ""),
    ToolCall(0, None, None, '{"city": '),
    ToolCall(0, None, None, '"Paris"}'),
    ToolCall(1, "call_2", "get_time", "{}"),
]
ECHO = RequestEcho(
    instructions=None,
    max_output_tokens=None,
    metadata={},
    parallel_tool_calls=True,
    reasoning={"effort": None, "summary": None},
    temperature=1.0,
    text={"format": {"type": "text"}, "verbosity": "medium"},
    tool_choice="auto",
    tools=[],
    top_logprobs=0,
    top_p=1.0,
    truncation="disabled",
    user=None,
)


def renderer() -> ResponseRenderer:
    return ResponseRenderer(
        "resp_1", 1_700_000_000, "m", ECHO, top_logprobs=0, targets={}, texts=TokenTexts()
    )


def parse(sent: bytes) -> list[dict[str, Any]]:
    """Return the data of events, each checked by the client's type."""
    events = []
    for event in sent.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        parsed = EVENTS.validate_python(payload)
        assert parsed.type == payload["type"]
        events.append(payload)
    return events


def deltas(parts: list[Part], finish: Finish = STOP) -> list[Any]:
    """Return an event for each part, the choice's end and the generation's."""
    events = [ChoiceDelta(0, [part], [1], None, None, TokenCounts(20, 1)) for part in parts]
    return [*events, ChoiceDelta(0, [], [1], None, finish, TokenCounts(20, 1)), GenerationFinished(USAGE)]


def stream(parts: list[Part], finish: Finish = STOP) -> list[dict[str, Any]]:
    rendering = renderer()
    return parse(b"".join(rendering.event(event) for event in deltas(parts, finish)))


def whole(parts: list[Part], finish: Finish = STOP) -> dict[str, Any]:
    body = asyncio.run(renderer().body([ChoiceDelta(0, parts, [], None, finish, USAGE)], USAGE))
    Response.model_validate_json(body)
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_stream_has_all_events_in_order_and_numbered() -> None:
    events = stream(PARTS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("finish", [STOP, Finish("length", None)])
def test_streamed_response_equals_the_whole_response(finish: Finish) -> None:
    *events, last = stream(PARTS, finish)
    assert last["response"] == whole(PARTS, finish)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == last["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[2] == {
        "type": "function_call",
        "id": "fc_1_2",
        "status": "completed",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
    }


def test_events_of_an_item_have_its_id_and_index() -> None:
    ids: dict[int, str] = {}
    for event in stream(PARTS):
        if event["type"] == "response.output_item.added":
            ids[event["output_index"]] = event["item"]["id"]
            assert event["item"]["status"] == "in_progress"
        elif "item_id" in event:
            assert event["item_id"] == ids[event["output_index"]]
    assert list(ids) == [0, 1, 2, 3] and len(set(ids.values())) == 4


@pytest.mark.parametrize("forwarded", range(len(PARTS) + 2))
def test_stream_continues_with_the_same_bytes_after_any_event(forwarded: int) -> None:
    """Another engine replays the deltas that the client has, and is told the number of their events."""
    first, second = renderer(), renderer()
    sent = [first.event(event) for event in deltas(PARTS)]
    for event in deltas(PARTS)[:forwarded]:
        second.event(event)
    second.num_events = b"".join(sent[:forwarded]).count(b"\n\n")
    assert [second.event(event) for event in deltas(PARTS)[forwarded:]] == sent[forwarded:]


def test_answer_that_reaches_the_limit_is_incomplete() -> None:
    *_, last = stream([Text("a")], Finish("length", None))
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][0]["status"] == "incomplete"


def test_answer_without_text_has_no_items() -> None:
    created, in_progress, completed = stream([])
    assert created["response"]["status"] == in_progress["response"]["status"] == "in_progress"
    assert completed["response"]["output"] == []


def test_usage_has_its_details() -> None:
    assert whole(PARTS)["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 29,
    }


def test_log_probabilities_belong_to_the_text() -> None:
    tokens = [{number: Logprob(-0.5, 1, text)} for number, text in enumerate(["They", " want", "I", " look"])]
    parts: list[Part] = [Reasoning("They want"), Text("I look")]
    rendering = renderer()
    body = json.loads(asyncio.run(rendering.body([ChoiceDelta(0, parts, [], tokens, STOP, USAGE)], USAGE)))
    _, message = body["output"]
    assert [token["token"] for token in message["content"][0]["logprobs"]] == ["I", " look"]


def test_continued_stream_repeats_the_log_probabilities_that_the_client_has() -> None:
    parts: list[Part] = [
        Text("I"),
        Text(" look"),
        ToolCall(0, "call_1", "get_time", "{}"),
        Text("Late"),
        Text("!"),
    ]
    events = deltas(parts)
    for number, part in enumerate(parts):
        entries = {number: Logprob(-0.1234567, 2, getattr(part, "text", "{")), 9: Logprob(-math.inf, 1, None)}
        events[number] = msgspec.structs.replace(events[number], logprobs=[entries])
    first = renderer()
    reports, sent = [], []
    for event in events:
        sent.append(first.event(event))
        reports.append(first.repeated_logprobs)

    for count in range(1, len(parts)):
        rest = renderer()
        logprobs = [one for report in reports[:count] for one in report]
        num_events = b"".join(sent[:count]).count(b"\n\n")
        rest.resume(
            Resume(id="", created=1, seed=1, model="", token_ids=[], events=num_events, logprobs=logprobs)
        )
        for event in events[:count]:
            rest.event(msgspec.structs.replace(event, logprobs=None))
        rest.num_events = num_events
        assert [rest.event(event) for event in events[count:]] == sent[count:]


def test_stream_lists_the_tokens_that_whole_answers_list_those_without_text_too() -> None:
    """A token may be a part of a character, or the end of the sequence."""
    choices = []
    for number, parts in enumerate([[Text("It is ")], [], [Text("é")], []]):
        entries = {number: Logprob(-0.5, 1, None)}
        finish = STOP if number == 3 else None
        choices.append(ChoiceDelta(0, parts, [number], [entries], finish, TokenCounts(20, number + 1)))
    joined = msgspec.structs.replace(
        choices[-1],
        parts=[part for choice in choices for part in choice.parts],
        logprobs=[entries for choice in choices for entries in choice.logprobs or []],
    )

    rendering = renderer()
    events = parse(b"".join(rendering.event(event) for event in (*choices, GenerationFinished(USAGE))))
    body = asyncio.run(renderer().body([joined], TokenCounts(20, 4)))

    def listed(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = output[0]["content"][0]["logprobs"]
        return found

    sent = [one for event in events if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert len(sent) == 4
    assert listed(events[-1]["response"]["output"]) == listed(json.loads(body)["output"])
    assert [one["logprob"] for one in sent] == [
        one["logprob"] for one in listed(events[-1]["response"]["output"])
    ]


def test_failure_in_mid_stream_is_an_error_and_a_failed_response() -> None:
    rendering = renderer()
    before = parse(rendering.event(deltas([Text("The cap")])[0]))
    error, failed = parse(rendering.error(ApiError(ErrorCode.INVALID_VALUE, "the server is shutting down")))
    assert (error["type"], error["message"]) == ("error", "the server is shutting down")
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {
        "message": "the server is shutting down",
        "code": "server_error",
    }
    (message,) = failed["response"]["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "The cap")
    assert [event["sequence_number"] for event in (error, failed)] == [len(before), len(before) + 1]
