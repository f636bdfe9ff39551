"""Tools of /v1/chat/completions, as OpenAI's own client sees them."""

import json
from typing import Any

import openai
import pytest
from local_server import LocalServer, serving
from openai.types.chat import ChatCompletionMessageFunctionToolCall

CHAT = "/v1/chat/completions"
MODEL = "smollm2"
CITIES = ["Paris", "Rome"]


def tool(name: str, properties: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {**parameters, "additionalProperties": False}, **fields},
    }


WEATHER = tool("get_weather", {"city": {"type": "string", "enum": CITIES}}, description="Weather of a city")
CLOCK = tool("get_time", {"zone": {"const": "Europe/Paris"}})
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "messages": QUESTION,
    "temperature": 0,
    "tools": [WEATHER, CLOCK],
    "parallel_tool_calls": False,
    "max_tokens": 80,
}
ONE_CALL = {**REQUEST, "tool_choice": "required"}
NAMED = {"type": "function", "function": {"name": "get_time"}}


TIME = {"zone": "Europe/Paris"}
# Texts of calls in the model's form.
CITY_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Paris"}}\n</tool_call>'


def only_call(message: Any) -> ChatCompletionMessageFunctionToolCall:
    (call,) = message.tool_calls
    assert call.type == "function"
    return call


def test_required_call_follows_the_schema_of_its_tool(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ONE_CALL).choices
    call = only_call(choice.message)
    arguments = json.loads(call.function.arguments)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert (call.function.name, list(arguments)) in [("get_weather", ["city"]), ("get_time", ["zone"])]
    assert set(arguments.values()) <= {*CITIES, "Europe/Paris"}
    assert call.id.startswith("call_")


def test_named_tool_is_called_and_the_finish_reason_stays(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    with tiered_server.saying(TIME_CALL):
        (choice,) = tiered_client.chat.completions.create(**REQUEST, tool_choice=NAMED).choices
    call = only_call(choice.message)
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", TIME)
    assert choice.finish_reason == "stop"


def test_grammar_of_a_named_tool_has_no_other(scripted: LocalServer) -> None:
    with scripted.saying(TIME_CALL):
        answer = scripted.post("/v1/chat/completions", {**REQUEST, "tool_choice": NAMED})
    assert answer.status == 200
    grammar = scripted.core.requests[-1].params.structured_outputs.grammar
    assert "get_time" in grammar and "get_weather" not in grammar


def test_streamed_call_equals_the_whole_one(tiered_server: Any, tiered_client: openai.OpenAI) -> None:
    with tiered_server.saying(CITY_CALL):
        whole = only_call(tiered_client.chat.completions.create(**ONE_CALL).choices[0].message)
        stream = tiered_client.chat.completions.create(**ONE_CALL, stream=True)
        chunks = [chunk.choices[0] for chunk in stream]
    fragments = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    first, *others = fragments
    assert first.function
    assert (first.index, first.type, first.function.name) == (0, "function", whole.function.name)
    assert first.id
    assert all(call.id is None and call.type is None and call.function.name is None for call in others)
    assert "".join(call.function.arguments for call in fragments) == whole.function.arguments
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].finish_reason == "tool_calls"


def test_arguments_are_streamed_while_they_are_generated(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    words = " ".join(["fair"] * 20)
    request = {**ONE_CALL, "max_tokens": 200, "tools": [tool("write", {"text": {"const": words}})]}
    text = f'<tool_call>\n{{"name": "write", "arguments": {{"text": "{words}"}}}}\n</tool_call>'
    with tiered_server.saying(text):
        stream = tiered_client.chat.completions.create(**request, stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
    fragments = [call.function.arguments for delta in deltas for call in delta.tool_calls or []]
    assert json.loads("".join(fragments)) == {"text": words}
    assert max(map(len, fragments)) <= 20


def test_calls_of_several_choices_have_ids_of_their_own(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    with tiered_server.saying(TIME_CALL):
        choices = tiered_client.chat.completions.create(**REQUEST, tool_choice=NAMED, n=2).choices
    assert len({only_call(choice.message).id for choice in choices}) == 2


def test_call_that_is_cut_is_content_of_a_whole_answer(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    with tiered_server.saying(CITY_CALL):
        (choice,) = tiered_client.chat.completions.create(**{**ONE_CALL, "max_tokens": 12}).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content
    assert choice.message.content.startswith("<tool_call>")


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_answer_without_a_call_is_content(
    tiered_server: Any, tiered_client: openai.OpenAI, choice: str
) -> None:
    request = {**REQUEST, "max_tokens": 4}
    with tiered_server.saying("I can't see the weather."):
        (answer,) = tiered_client.chat.completions.create(**request, tool_choice=choice).choices
    assert answer.message.content
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "length"


def test_tools_calls_and_results_are_in_the_prompt(scripted: LocalServer) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Sunny, 31 °C"}]},
    ]
    request = {**REQUEST, "messages": messages, "max_tokens": 1, "return_prompt_text": True}
    prompt = scripted.post("/v1/chat/completions", request).json["prompt_text"]
    assert '"description": "Weather of a city"' in prompt
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>' in prompt
    assert "<tool_response>\nSunny, 31 °C\n</tool_response>" in prompt


def test_agent_calls_two_tools_and_answers(tiered_server: Any, tiered_client: openai.OpenAI) -> None:
    create = tiered_client.chat.completions.create
    messages: list[Any] = list(QUESTION)
    for name, text, result in (
        ("get_weather", CITY_CALL, "Sunny"),
        ("get_time", TIME_CALL, "12:00"),
    ):
        named = {"type": "function", "function": {"name": name}}
        with tiered_server.saying(text):
            message = create(**{**REQUEST, "messages": messages}, tool_choice=named).choices[0].message
        call = only_call(message)
        assert call.function.name == name
        messages.append(message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = create(**{**REQUEST, "messages": messages, "max_tokens": 8})
    assert answer.choices[0].message.content


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ("", "{}"),
        (" ", "{}"),
        ('{"city": "Ro', r'"{\"city\": \"Ro"'),
        ("[1]", '"[1]"'),
        (r'{"city": "\ud83d"}', r'"{\"city\": \"\\ud83d\"}"'),
        ('{"city": "Rome"}', '{"city": "Rome"}'),
    ],
)
def test_empty_and_cut_arguments_of_an_earlier_call_are_accepted(
    scripted: LocalServer, arguments: str, rendered: str
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, *QUESTION]
    request = {**REQUEST, "messages": messages, "max_tokens": 1, "return_prompt_text": True}

    answer = scripted.post("/v1/chat/completions", request)

    assert answer.status == 200, answer.body
    assert f'"arguments": {rendered}}}' in answer.json["prompt_text"]


def test_call_that_a_stream_cut_is_accepted_as_history(scripted: LocalServer) -> None:
    with scripted.saying(CITY_CALL), scripted.client() as client:
        stream = client.chat.completions.create(**{**ONE_CALL, "max_tokens": 18}, stream=True)
        fragments = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
        function = {
            "name": fragments[0].function.name,
            "arguments": "".join(one.function.arguments for one in fragments),
        }
        call: Any = {"id": fragments[0].id, "type": "function", "function": function}
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            json.loads(function["arguments"])
        turns: Any = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, *QUESTION]
        answer = client.chat.completions.create(**{**REQUEST, "messages": turns})
    assert answer.choices[0].finish_reason


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DEEP_CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a":' * 999 + "1" + "}" * 999},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name twice": ({"tools": [WEATHER, WEATHER]}, "get_weather twice"),
    "name with a space": ({"tools": [tool("get weather", {})]}, "tools.0.function.name"),
    "no type": ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
    "demand of an ignored tool": (
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        "there are no tools",
    ),
    "schema of no object": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools.0.function.parameters",
    ),
    "deep schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": deep_schema(40)}}]},
        "at most 64 are allowed",
    ),
    "number of tools": ({"tools": [tool(f"f{number}", {}) for number in range(513)]}, "at most 512"),
    "size of tools": ({"tools": [tool("f", {}, description="x" * 600_000)]}, "at most 524,288 are allowed"),
    "demand without tools": ({"tools": [], "tool_choice": "required"}, "there are no tools"),
    "unknown mode": ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
    "unknown tool": ({"tools": [WEATHER], "tool_choice": NAMED}, "there is no tool get_time"),
    "functions": ({"functions": [{"name": "f"}]}, "functions is not supported"),
    "function_call": ({"function_call": {"name": "f"}}, "function_call is not supported"),
    "deep call": (
        {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [DEEP_CALL]}]},
        "messages.1.tool_calls.0.function.arguments",
    ),
    "call of a user": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": "",
                    "tool_calls": [CALL],
                }
            ]
        },
        "tool_calls are of the role assistant",
    ),
    "user without content": ({"messages": [{"role": "user", "content": None}]}, "content takes a string"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_tools_are_refused_with_the_reason(scripted: LocalServer, case: str) -> None:
    fields, expected = REFUSED[case]
    answer = scripted.post(
        "/v1/chat/completions", {"model": MODEL, "messages": QUESTION, "max_tokens": 1, **fields}
    )
    assert answer.status == 400, answer.body
    assert expected in answer.error["message"]


SEARCH = {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}
GRAMMAR = {"type": "custom", "custom": {"name": "shell", "format": {"type": "text"}}}


def test_tools_of_other_types_are_left_out_and_named(scripted: LocalServer) -> None:
    body = REQUEST | {"max_tokens": 1}

    answer = scripted.post(CHAT, body | {"tools": [SEARCH, WEATHER, GRAMMAR]})
    without = scripted.post(CHAT, body | {"tools": [WEATHER]})
    alone = scripted.post(CHAT, body | {"tools": [SEARCH]})

    assert answer.status == alone.status == 200, answer.body
    assert answer.headers["x-fairlead-ignored"] == "tools.0 (web_search), tools.2 (custom)"
    assert answer.json["usage"]["prompt_tokens"] == without.json["usage"]["prompt_tokens"]


def test_strict_server_refuses_tools_of_other_types() -> None:
    with serving("--strict-tools") as server:
        answer = server.post(CHAT, REQUEST | {"tools": [WEATHER, SEARCH]})
    assert (answer.status, answer.error["param"]) == (400, "tools.1")
    assert "tools.1 (web_search) is a tool of a type that is not supported" in answer.error["message"]
