"""Anthropic's messages as turns of a chat template."""

import json
from typing import Any

import pytest
from server.conversation.prompted import prompted

from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.conversation.chat_prompt import ChatPrompt
from engine_server.server.conversation.prefill import Prefill
from engine_server.server.http.errors import ApiError

CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}


def request(messages: Any, **fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 5, "messages": messages, **fields}
    return parse_request(MessagesRequest, json.dumps(body).encode())


def turns(messages: Any, **fields: Any) -> ChatPrompt:
    return prompted(request(messages, **fields))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.")]])
def test_system_precedes_the_messages(system: Any) -> None:
    assert turns([user("Hi")], system=system).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_billing_header_of_a_coding_agent_is_left_out() -> None:
    system = [text("x-anthropic-billing-header: cch=1f3a"), text("Be brief.")]
    assert turns([user("Hi")], system=system).messages[0]["content"] == "Be brief."


def test_messages_of_the_system_stay_in_their_places() -> None:
    note = {"role": "system", "content": "Agents: Explore."}
    found = turns([note, user("a"), note, assistant("b"), note, user("c")], system="Be brief.")
    assert [(message["role"], message["content"]) for message in found.messages] == [
        ("system", "Be brief."),
        ("system", "Agents: Explore."),
        ("user", "a"),
        ("system", "Agents: Explore."),
        ("assistant", "b"),
        ("system", "Agents: Explore."),
        ("user", "c"),
    ]


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    assert turns([user("a"), user([text("b"), text("c")])]).messages == [
        {"role": "user", "content": "a\nb\nc"}
    ]


def test_tool_calls_and_results_become_turns_of_their_own() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("18 degrees")]}
    thinking = {"type": "thinking", "thinking": "I need the weather.", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "opaque"}
    conversation = [
        user("Weather?"),
        assistant([thinking, redacted, text("I look."), CALL]),
        user([result, text("And now?")]),
    ]
    found = turns(conversation)
    assert found.open_answer and found.prefill is None
    assert found.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "I need the weather.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "get_weather", "content": "18 degrees"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({}, ""),
        ({"content": "timeout", "is_error": True}, "Error: timeout"),
        ({"content": "done", "is_error": False}, "done"),
    ],
)
def test_tool_result_may_be_empty_or_an_error(result: dict[str, Any], content: str) -> None:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **result}
    last = turns([user("Go"), assistant([CALL]), user([block])]).messages[-1]
    assert last["content"] == content


def test_last_message_of_the_assistant_is_continued() -> None:
    found = turns([user("Hi"), assistant("The capital of")])
    assert (found.open_answer, found.prefill) == (False, Prefill("", "The capital of"))
    assert found.messages == [user("Hi")]


def test_tools_have_the_form_of_the_chat_api() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": schema}
    function = {"name": "get_weather", "description": "Weather of a city", "parameters": schema}
    for fields in ({}, {"type": "custom"}, {"cache_control": {"type": "ephemeral"}}):
        use = request([user("Hi")], tools=[tool | fields]).tool_use
        assert use and use.definitions == [{"type": "function", "function": function}]
    assert request([user("Hi")]).tool_use is None


@pytest.mark.parametrize(
    ("choice", "mode", "name", "parallel"),
    [
        ({"type": "auto"}, "auto", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "f"}, "required", "f", True),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_tool_choice_becomes_that_of_the_chat_api(
    choice: dict[str, Any], mode: str, name: str | None, parallel: bool
) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    use = request([user("Hi")], tools=tools, tool_choice=choice).tool_use
    assert use and (use.choice, use.name, use.parallel) == (mode, name, parallel)


def test_output_config_has_a_schema_and_an_effort() -> None:
    schema = {"type": "object"}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    body = request([user("Hi")], output_config=config)
    assert body.response_form == {"type": "json_schema", "json_schema": {"schema": schema}}
    assert prompted(body).variables["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_switches_the_templates_reasoning(thinking: dict[str, Any], enabled: bool) -> None:
    assert turns([user("Hi")], thinking=thinking).variables["enable_thinking"] is enabled
    assert turns([user("Hi")]).variables == {}


WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("change", "param", "reason"),
    [
        ({"system": [IMAGE]}, "system.0", "image"),
        ({"messages": [user([CALL])]}, "messages", "tool_use"),
        ({"messages": [user("Go"), assistant([CALL])]}, "messages", "ends with text"),
        ({"messages": []}, "messages", "at least 1"),
        ({"max_tokens": None}, "max_tokens", "integer"),
        (
            {"tools": [WEB_SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice",
            "no tools",
        ),
        ({"tools": [WEB_SEARCH], "tool_choice": {"type": "any"}}, "tool_choice", "no tools"),
        ({"tools": [{"name": "f"}]}, "tools.0.custom.input_schema", "missing"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice", "needs a name"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}},
            "tool_choice",
            "no tool g",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, "tools.0.custom.input_schema", "object"),
        ({"n": 2}, "n", "not supported"),
        ({"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers", "not supported"),
    ],
)
def test_refusal_names_the_field(change: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        turns(**{"messages": [user("Hi")], **change})
    assert (refused.value.status, refused.value.param) == (400, param)
    assert reason in refused.value.message


def test_blocks_of_unknown_types_are_notes() -> None:
    body = request(
        [user("Hi"), assistant([{"type": "server_tool_use", "id": "s", "name": "n"}]), user("Go on")]
    )
    assert prompted(body).messages[1] == {"role": "assistant", "content": "[server_tool_use omitted]"}
    (omitted,) = body.media
    assert (str(omitted.part), omitted.newest) == ("messages.1.content.0 (server_tool_use)", False)


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "tool_reference", "tool_name": "get_weather"}, "get_weather"),
        (
            {
                "type": "search_result",
                "title": "T",
                "source": "https://example.com",
                "content": [text("a"), text("b")],
            },
            "T\nhttps://example.com\na\nb",
        ),
        ({"type": "document", "title": "T", "source": {"type": "text", "data": "a"}}, "T\na"),
        ({"type": "document", "source": {"type": "text", "data": "a"}}, "a"),
        ({"type": "document", "source": {"type": "base64", "data": "aGk="}}, "[document omitted]"),
        ({"type": "search_result"}, "[search_result omitted]"),
        ({"type": "later_invention"}, "[later_invention omitted]"),
    ],
)
def test_references_in_a_result_are_text(block: dict[str, Any], shown: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
    assert turns([user("Go"), assistant([CALL]), user([result])]).messages[-1]["content"] == shown


def test_thoughts_and_texts_of_one_answer_keep_their_order() -> None:
    def thought(words: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": words, "signature": "s"}

    answer = [thought("ONE"), CALL, thought("TWO"), thought("THREE"), text("I look.")]
    found = turns([user("Go"), assistant(answer), user("Well?")]).messages[1:-1]
    assert [(turn.get("reasoning_content"), turn["content"], "tool_calls" in turn) for turn in found] == [
        ("ONE", "", True),
        ("TWO\n\nTHREE", "I look.", False),
    ]
