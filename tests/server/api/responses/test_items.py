"""Input items of the responses API as turns of a chat template."""

import json
from typing import Any

import pytest
from server.conversation.prompted import prompted

from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.conversation.chat_prompt import ChatPrompt
from engine_server.server.http.errors import ApiError

CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"}
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def request(input: Any = "Hi", **fields: Any) -> ResponsesRequest:
    body = {"model": "m", "input": input, **fields}
    return parse_request(ResponsesRequest, json.dumps(body).encode())


def turns(input: Any = "Hi", **fields: Any) -> ChatPrompt:
    return prompted(request(input, **fields))


def test_string_is_a_message_of_the_user_after_the_instructions() -> None:
    assert turns("Hi", instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a\nb"},
        {"type": "message", "role": "user", "content": "a\nb", "status": "completed"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
    ],
)
def test_messages_have_several_forms(message: dict[str, Any]) -> None:
    assert turns([message]).messages == [{"role": "user", "content": "a\nb"}]


def test_leading_messages_of_the_developer_join_the_system_and_later_ones_are_its_own() -> None:
    developer = {"role": "developer", "content": "Sandbox: read-only."}
    found = turns([developer, {"role": "user", "content": "Hi"}, developer], instructions="Be brief.")
    assert found.messages == [
        {"role": "system", "content": "Be brief.\n\nSandbox: read-only."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Sandbox: read-only."},
    ]


def test_calls_in_namespaces_and_of_custom_tools_have_the_names_of_the_prompt() -> None:
    called = {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin"}
    answered = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"}
    calls, *results = turns([CALL | {"namespace": "web"}, called, OUTPUT, answered]).messages
    assert [call["function"] for call in calls["tool_calls"]] == [
        {"name": "web__get_weather", "arguments": {"city": "Paris"}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
    ]
    assert [(turn["role"], turn["name"], turn["content"]) for turn in results] == [
        ("tool", "web__get_weather", "18 degrees"),
        ("tool", "apply_patch", "Done"),
    ]


def test_items_of_an_answer_are_one_turn() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I need the weather."}],
    }
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    }
    found = turns([{"role": "user", "content": "Weather?"}, reasoning, message, CALL, OUTPUT])
    assert found.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "I need the weather.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "18 degrees"},
    ]


def test_summary_replaces_reasoning_that_is_encrypted() -> None:
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Short."}],
        "encrypted_content": "opaque",
    }
    assert turns([item, {"role": "user", "content": "Hi"}]).messages[0]["reasoning_content"] == "Short."


@pytest.mark.parametrize(("status", "continues"), [("incomplete", True), ("completed", False)])
def test_incomplete_message_at_the_end_is_continued(status: str, continues: bool) -> None:
    message = {"type": "message", "role": "assistant", "content": "The capital of", "status": status}
    found = turns([{"role": "user", "content": "Hi"}, message])
    assert (found.prefill is not None, found.open_answer) == (continues, not continues)


def test_tools_have_the_form_of_the_chat_api() -> None:
    use = request(tools=[TOOL | {"strict": True, "description": "d"}]).tool_use
    function = {
        "name": "get_weather",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert use and use.definitions == [{"type": "function", "function": function}]
    assert request().tool_use is None


@pytest.mark.parametrize(
    ("choice", "mode", "name", "callable"),
    [
        ("auto", "auto", None, ["get_weather", "get_time"]),
        ("none", "none", None, []),
        ("required", "required", None, ["get_weather", "get_time"]),
        ({"type": "function", "name": "get_time"}, "required", "get_time", ["get_time"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_time"}],
            },
            "required",
            None,
            ["get_time"],
        ),
    ],
)
def test_tool_choice_becomes_that_of_the_chat_api(
    choice: Any, mode: str, name: str | None, callable: list[str]
) -> None:
    use = request(tools=[TOOL, TOOL | {"name": "get_time"}], tool_choice=choice).tool_use
    assert use and (use.choice, use.name) == (mode, name)
    assert [tool["function"]["name"] for tool in use.callable] == callable


@pytest.mark.parametrize(
    ("format", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object", "json_schema": {"schema": None}}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        ),
    ],
)
def test_text_format_becomes_that_of_the_chat_api(format: Any, form: Any) -> None:
    assert request(text={"format": format}).response_form == form


def test_effort_switches_the_templates_reasoning() -> None:
    assert turns(reasoning={"effort": "none"}).variables["enable_thinking"] is False
    high = turns(reasoning={"effort": "high"}).variables
    assert high["enable_thinking"] is True and high["reasoning_effort"] == "high"
    assert turns(reasoning={"summary": "auto"}).variables == {}


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), ('{"city": "Pa', '{"city": "Pa')])
def test_empty_and_cut_arguments_of_a_call_are_accepted(arguments: str, expected: Any) -> None:
    (turn,) = turns([CALL | {"arguments": arguments}]).messages
    assert turn["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize(
    ("change", "param", "reason"),
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "send the whole item"),
        ({"input": [{"id": "msg_1"}]}, "input.0", "send the whole item"),
        ({"input": [CALL | {"arguments": {}}]}, "input.0.function_call.arguments", "takes a string"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tools": [TOOL | {"name": "n" * 129}]}, "tools.0.function.name", "pattern"),
        (
            {"tools": [{"type": "namespace", "name": "n" * 120, "tools": [TOOL]}]},
            "tools",
            "tools.0.tools.0 has a name that is too long",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "custom", "name": "f" * 128, "namespace": "n" * 128}},
            "tool_choice",
            "no tool n",
        ),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tool f"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "schema"),
        ({"tool_choice": {"type": "mcp", "server_label": "s"}}, "tool_choice", "mcp"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole input"),
        ({"conversation": "conv_1"}, "conversation", "send the whole input"),
        ({"background": True}, "background", "send the whole input"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send the whole input"),
        ({"n": 2}, "n", "not supported"),
    ],
)
def test_refusal_names_the_field(change: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        turns(**change)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert reason in refused.value.message


def test_items_and_parts_of_unknown_types_are_notes() -> None:
    screenshot = {"role": "user", "content": [{"type": "computer_screenshot"}]}
    body = request([screenshot, {"type": "computer_call", "id": "1"}, {"role": "user", "content": "Go on"}])
    assert [message["content"] for message in prompted(body).messages] == [
        "[computer_screenshot omitted]",
        "[computer_call omitted]",
        "Go on",
    ]
    assert [str(one.part) for one in body.media] == [
        "input.0.content.0 (computer_screenshot)",
        "input.1 (computer_call)",
    ]
