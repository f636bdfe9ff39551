"""Tools and schemas of /v1/messages, as Anthropic's own client sees them."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from local_server import LocalServer

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name: str, properties: dict[str, Any], **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "input_schema": {**schema, "additionalProperties": False}, **fields}


WEATHER = tool("get_weather", {"city": {"enum": ["Paris", "Rome"]}}, description="Weather of a city")
CLOCK = tool("get_time", {"zone": {"const": "Europe/Paris"}})
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "messages": QUESTION,
    "max_tokens": 80,
    "tools": [WEATHER, CLOCK],
    "extra_body": {"temperature": 0},
}
NAMED = {"type": "tool", "name": "get_time"}


TIME = {"zone": "Europe/Paris"}
# Texts of calls in the model's form.
CITY_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Paris"}}\n</tool_call>'


def client_of(server: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claude(server: Any) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def tiered_claude(tiered_server: Any) -> Iterator[anthropic.Anthropic]:
    with client_of(tiered_server) as client:
        yield client


def only_call(message: Any) -> Any:
    (block,) = message.content
    assert block.type == "tool_use"
    return block


@pytest.mark.parametrize("stream", [False, True])
def test_any_tool_is_called_with_input_of_its_schema(
    tiered_server: Any, tiered_claude: anthropic.Anthropic, stream: bool
) -> None:
    request = REQUEST | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with tiered_server.saying(CITY_CALL):
        if stream:
            with tiered_claude.messages.stream(**request) as events:
                message = events.get_final_message()
        else:
            message = tiered_claude.messages.create(**request)  # type: ignore[assignment]
    call = only_call(message)
    assert message.stop_reason == "tool_use"
    assert call.id
    assert (call.name, call.input) in [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
        ("get_time", TIME),
    ]


def test_input_is_streamed_in_fragments_that_join_to_json(
    tiered_server: Any, tiered_claude: anthropic.Anthropic
) -> None:
    with tiered_server.saying(TIME_CALL):
        events = list(tiered_claude.messages.create(**REQUEST, tool_choice=NAMED, stream=True))
    start = next(event for event in events if event.type == "content_block_start")
    assert start.content_block.type == "tool_use" and start.content_block.name == "get_time"
    assert start.content_block.input == {}
    fragments = [
        event.delta.partial_json
        for event in events
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]
    assert len(fragments) > 1
    assert json.loads("".join(fragments)) == TIME


def test_agent_calls_two_tools_and_answers(tiered_server: Any, tiered_claude: anthropic.Anthropic) -> None:
    claude = tiered_claude
    messages: list[Any] = list(QUESTION)
    for name, text, result in (
        ("get_weather", CITY_CALL, "Sunny"),
        ("get_time", TIME_CALL, "12:00"),
    ):
        choice = {"type": "tool", "name": name}
        with tiered_server.saying(text):
            message = claude.messages.create(**REQUEST | {"messages": messages}, tool_choice=choice)
        call = only_call(message)
        assert call.name == name
        messages.append({"role": "assistant", "content": message.content})
        block = {"type": "tool_result", "tool_use_id": call.id, "content": result}
        messages.append({"role": "user", "content": [block]})
    answer = claude.messages.create(**REQUEST | {"messages": messages, "max_tokens": 8})
    assert answer.content[0].type == "text" and answer.content[0].text
    count = claude.messages.count_tokens(model=MODEL, messages=messages, tools=REQUEST["tools"])
    usage = answer.usage
    assert usage.cache_read_input_tokens is not None and usage.cache_creation_input_tokens is not None
    used = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert count.input_tokens == used


def test_tools_are_in_the_prompt_unless_none_may_be_called(tiered_claude: anthropic.Anthropic) -> None:
    def count(**fields: Any) -> int:
        return tiered_claude.messages.count_tokens(model=MODEL, messages=QUESTION, **fields).input_tokens  # type: ignore[arg-type]

    plain = count()
    assert count(tools=[WEATHER]) > plain
    assert count(tools=[WEATHER, CLOCK]) > count(tools=[WEATHER])


@pytest.mark.parametrize("stream", [False, True])
def test_answer_follows_the_schema_of_its_format(claude: anthropic.Anthropic, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    request = REQUEST | {"tools": [], "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if stream:
        with claude.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = claude.messages.create(**request)  # type: ignore[assignment]
    assert message.content[0].type == "text"
    assert json.loads(message.content[0].text)["city"] in ("Paris", "Rome")


def test_tools_that_anthropic_defines_are_left_out_and_named(scripted: LocalServer) -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}

    answer = scripted.post("/v1/messages", body | {"tools": [WEATHER, hosted]})
    without = scripted.post("/v1/messages", body | {"tools": [WEATHER]})

    assert answer.status == 200, answer.body
    assert answer.headers["x-fairlead-ignored"] == "tools.1 (web_search_20250305)"
    assert answer.json["usage"]["input_tokens"] == without.json["usage"]["input_tokens"]
