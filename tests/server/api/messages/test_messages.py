"""/v1/messages, as Anthropic's own client sees it."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# The client has no argument for the temperature.
GREEDY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 20,
    "messages": QUESTION,
    "extra_body": {"temperature": 0},
}
ANSWER = "The capital of France is Paris."


@pytest.fixture
def claude(tiered_server: Any) -> Iterator[anthropic.Anthropic]:
    """A client of a server that gives ANSWER."""
    with client_of(tiered_server) as client, tiered_server.saying(ANSWER):
        yield client


@pytest.fixture
def async_claude(tiered_server: Any) -> Iterator[anthropic.AsyncAnthropic]:
    with tiered_server.saying(ANSWER):
        yield client_of(tiered_server, anthropic.AsyncAnthropic)


def client_of(server: Any, kind: Any = anthropic.Anthropic) -> Any:
    return kind(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def test_model_answers_with_text_usage_and_stop_reason(server: Any) -> None:
    with client_of(server) as client:
        message = client.messages.create(**GREEDY)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    (block,) = message.content
    assert block.type == "text" and block.text == ANSWER
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == 8
    assert prompt_tokens(message.usage) == 37
    assert message._request_id


def prompt_tokens(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


def test_streamed_message_equals_the_whole_message(claude: anthropic.Anthropic, tiered_server: Any) -> None:
    request = GREEDY | {"messages": [{"role": "user", "content": "Say 你好 and 🎉 twice."}]}
    with tiered_server.saying("你好 and 🎉, 你好 and 🎉."):
        whole = claude.messages.create(**request)
        with claude.messages.stream(**request) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert streamed.content[0].text == text  # type: ignore[union-attr]
    assert streamed.stop_reason == whole.stop_reason
    assert prompt_tokens(streamed.usage) == prompt_tokens(whole.usage)
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_stream_has_the_events_in_order(claude: anthropic.Anthropic) -> None:
    events = list(claude.messages.create(**GREEDY | {"max_tokens": 2}, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0].type == "message_start" and prompt_tokens(events[0].message.usage) == 37
    assert events[-2].type == "message_delta" and events[-2].delta.stop_reason == "max_tokens"


async def test_async_client_gets_the_same(async_claude: anthropic.AsyncAnthropic) -> None:
    async with async_claude as client:
        message = await client.messages.create(**GREEDY)
        async with client.messages.stream(**GREEDY) as stream:
            streamed = await stream.get_final_message()
    assert message.content[0].text == streamed.content[0].text == ANSWER  # type: ignore[union-attr]


def test_beta_client_is_answered(claude: anthropic.Anthropic) -> None:
    message = claude.beta.messages.create(**GREEDY, betas=["interleaved-thinking-2025-05-14"])
    assert message.content[0].text == ANSWER  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence_ends_the_answer_and_is_named(claude: anthropic.Anthropic, stream: bool) -> None:
    request = GREEDY | {"stop_sequences": ["never", "France"]}
    if stream:
        with claude.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = claude.messages.create(**request)  # type: ignore[assignment]
    assert message.content[0].text == "The capital of "  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "France")


def test_answer_that_fills_the_context_names_it_as_the_reason(claude: anthropic.Anthropic) -> None:
    """The context has 1024 tokens."""
    long = [{"role": "user", "content": "Count: " + " one" * 982}]
    request = GREEDY | {"messages": long, "max_tokens": 4096}
    message = claude.messages.create(**request | {"extra_body": {"ignore_eos": True}})
    assert message.stop_reason == "model_context_window_exceeded"
    assert prompt_tokens(message.usage) + message.usage.output_tokens == 1024


def test_last_message_of_the_assistant_is_continued(claude: anthropic.Anthropic, tiered_server: Any) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    with tiered_server.saying(" France is Paris."):
        message = claude.messages.create(**GREEDY | {"messages": turns})
    assert message.content[0].text == " France is Paris."  # type: ignore[union-attr]


def test_accepts_blocks_and_options_that_do_nothing_here(claude: anthropic.Anthropic) -> None:
    ephemeral = {"type": "ephemeral"}
    blocks = [{"type": "text", "text": QUESTION[0]["content"], "cache_control": ephemeral}]
    message = claude.messages.create(
        **GREEDY
        | {
            "messages": [{"role": "user", "content": blocks}],
            "extra_body": {"temperature": 0, "top_k": 5, "top_p": 0.9, "no_such_field": 1},
        },
        metadata={"user_id": "me"},
        service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert message.content[0].text == ANSWER  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"thinking": {"type": "disabled"}},
        {"messages": [*QUESTION, {"role": "assistant", "content": "The capital of"}]},
        {"tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]},
    ],
)
def test_counted_tokens_equal_those_of_the_message(
    claude: anthropic.Anthropic, fields: dict[str, Any]
) -> None:
    prompt = {"model": MODEL, "messages": QUESTION} | fields
    count = claude.messages.count_tokens(**prompt)
    message = claude.messages.create(**prompt, max_tokens=1)
    assert count.input_tokens == prompt_tokens(message.usage)


def test_count_needs_no_max_tokens_and_may_exceed_the_context(claude: anthropic.Anthropic) -> None:
    count = claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": " one" * 2000}])
    assert count.input_tokens > 2000


def test_client_raises_the_error_class_of_the_status(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(**GREEDY | {"extra_body": {"temperature": -1}})
    assert "temperature" in bad.value.message
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**GREEDY | {"model": "claude-9"})
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        claude.messages.create(**GREEDY | {"stop_sequences": [""]})
    with pytest.raises(anthropic.BadRequestError, match="image"):
        claude.messages.create(**GREEDY | {"messages": [{"role": "user", "content": [{"type": "image"}]}]})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("body", "length", "status", "kind"),
    [
        (b"{", "1", 400, "invalid_request_error"),
        (b'{"model": "smollm2"}', "20", 400, "invalid_request_error"),
        (b"", str(1 << 40), 413, "request_too_large"),
    ],
)
def test_errors_have_anthropics_shape(
    tiered_server: Any, path: str, body: bytes, length: str, status: int, kind: str
) -> None:
    answer = tiered_server.request("POST", path, body, {"Content-Length": length})
    assert answer.status == status
    assert answer.json["type"] == "error"
    assert answer.error["type"] == kind and answer.error["message"]
    assert answer.json["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_empty_conversation_with_tools_causes_no_server_error(tiered_server: Any, path: str) -> None:
    tools = [{"name": "f", "input_schema": {}}]
    empty = {"messages": [{"role": "user", "content": []}], "tools": tools}
    assert tiered_server.post(path, {"model": "smollm2", "max_tokens": 1, **empty}).status in (200, 400)


def test_unknown_method_and_path_have_anthropics_shape(tiered_server: Any) -> None:
    wrong = tiered_server.get("/v1/messages")
    assert (wrong.status, wrong.error["type"]) == (405, "invalid_request_error")
    missing = tiered_server.post("/v1/messages/batches", {})
    assert (missing.status, missing.error["type"]) == (404, "not_found_error")


def test_prompt_over_the_context_is_refused_also_when_streamed(claude: anthropic.Anthropic) -> None:
    long = GREEDY | {"messages": [{"role": "user", "content": " one" * 2000}]}
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match="1024"):
            claude.messages.create(**long, stream=stream)


def test_stream_names_its_events_as_data_does(tiered_server: Any) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 2, "stream": True}
    answer = tiered_server.post("/v1/messages", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end = answer.body.decode().split("\n\n")
    assert end == ""
    names = []
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
        names.append(name)
    assert "event: ping" in names and names[-1] == "event: message_stop"
