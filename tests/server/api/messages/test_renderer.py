"""Rendering of Anthropic's answers, parsed by the types of Anthropic's own client."""

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api.messages.renderer import MessagesRenderer
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

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
STOP = Finish("stop", None)
USAGE = TokenCounts(20, 9, cached_tokens=16, reasoning_tokens=4)
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


def renderer(show_thinking: bool = True, report_cached: bool = True) -> MessagesRenderer:
    return MessagesRenderer("msg_1", "m", 100, show_thinking=show_thinking, report_cached=report_cached)


def stream(events: list[ChoiceDelta], counts: TokenCounts = USAGE, **options: Any) -> list[dict[str, Any]]:
    """Return the data of the events of a streamed answer, each checked by the client's type."""
    rendering = renderer(**options)
    sent = b"".join(rendering.event(event) for event in [*events, GenerationFinished(counts)])
    data = []
    for event in sent.decode().removesuffix("\n\n").split("\n\n"):
        name, content = event.split("\n")
        payload = json.loads(content.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        if payload["type"] != "ping":
            EVENTS.validate_python(payload, strict=True)
        data.append(payload)
    return data


def deltas(parts: list[Part], finish: Finish = STOP) -> list[ChoiceDelta]:
    """Return an event for each part, and the end."""
    usage = TokenCounts(20, 1)
    events = [ChoiceDelta(0, [part], [1], None, None, usage) for part in parts]
    return [*events, ChoiceDelta(0, [], [1], None, finish, usage)]


def whole(parts: list[Part], finish: Finish = STOP, counts: TokenCounts = USAGE, **options: Any) -> Message:
    body = asyncio.run(renderer(**options).body([ChoiceDelta(0, parts, [], None, finish, counts)], counts))
    return Message.model_validate_json(body, strict=True)


def test_stream_has_start_deltas_and_stop_of_each_block_in_order() -> None:
    events = stream(deltas(PARTS))
    assert [event["type"] for event in events] == [
        "message_start", "ping",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_delta",
        "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2, 3]
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == [
        "thinking_delta", "thinking_delta", "signature_delta", "text_delta", "text_delta",
        "input_json_delta", "input_json_delta", "input_json_delta",
    ]  # fmt: skip


def test_streamed_blocks_join_to_those_of_the_whole_answer() -> None:
    blocks: list[dict[str, Any]] = []
    for event in stream(deltas(PARTS)):
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(block | ({"json": ""} if block["type"] == "tool_use" else {}))
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
                blocks[-1]["json"] += text
            case {"type": "content_block_delta", "delta": {"type": kind} as delta}:
                field = kind.removesuffix("_delta")
                blocks[-1][field] += delta[field]
    for block in blocks:
        if "json" in block:
            block["input"] = json.loads(block.pop("json"))
    answer = whole(PARTS)
    assert [block.model_dump(exclude_none=True) for block in answer.content] == blocks
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["signature"]


@pytest.mark.parametrize("forwarded", range(len(PARTS) + 2))
def test_stream_continues_with_the_same_bytes_after_any_event(forwarded: int) -> None:
    """Another engine replays the deltas that the client has."""
    first, second = renderer(), renderer()
    events = [*deltas(PARTS), GenerationFinished(USAGE)]
    sent = [first.event(event) for event in events]
    for event in events[:forwarded]:
        second.event(event)
    assert [second.event(event) for event in events[forwarded:]] == sent[forwarded:]


def test_usage_adds_up_to_the_prompt_and_counts_thinking() -> None:
    answer = whole(PARTS)
    usage = answer.usage
    assert usage.cache_read_input_tokens == 16 and usage.cache_creation_input_tokens == 0
    unreported = whole(PARTS, report_cached=False).usage
    assert (unreported.input_tokens, unreported.cache_read_input_tokens) == (20, 0)
    assert usage.input_tokens == 4
    assert usage.output_tokens == 9
    assert usage.output_tokens_details and usage.output_tokens_details.thinking_tokens == 4
    *_, delta, _ = stream(deltas(PARTS))
    assert delta["usage"] == usage.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("parts", "finish", "tokens", "reason", "sequence"),
    [
        ([Text("a")], STOP, 5, "end_turn", None),
        ([Text("a")], Finish("stop", 2), 5, "end_turn", None),
        ([Text("a")], Finish("stop", "END"), 5, "stop_sequence", "END"),
        ([Text("a")], Finish("length", None), 100, "max_tokens", None),
        ([Text("a")], Finish("timeout", None), 5, "max_tokens", None),
        ([Text("a")], Finish("length", None), 99, "model_context_window_exceeded", None),
        (PARTS, STOP, 5, "tool_use", None),
        (PARTS, Finish("tool_calls", None), 5, "tool_use", None),
        (PARTS, Finish("length", None), 100, "max_tokens", None),
        ([], STOP, 1, "end_turn", None),
    ],
)
def test_stop_reason(
    parts: list[Part], finish: Finish, tokens: int, reason: str, sequence: str | None
) -> None:
    usage = TokenCounts(20, tokens)
    answer = whole(parts, finish, usage)
    assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)
    *_, delta, _ = stream(deltas(parts, finish), usage)
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_omitted_thinking_has_a_block_without_text() -> None:
    first, *_ = whole(PARTS, show_thinking=False).content
    assert first.type == "thinking" and first.thinking == "" and first.signature
    kinds = [
        e["delta"]["type"]
        for e in stream(deltas(PARTS), show_thinking=False)
        if "index" in e and "delta" in e
    ]
    assert "thinking_delta" not in kinds and "signature_delta" in kinds


def test_failure_in_mid_stream_is_an_error_event() -> None:
    event = renderer().error(ApiError(ErrorCode.DRAINING, "the server is shutting down")).decode()
    name, data, *_ = event.split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the server is shutting down", "code": "draining"},
    }
