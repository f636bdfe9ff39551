"""Tools and text formats of /v1/responses, as OpenAI's own client sees them."""

import json
from typing import Any, Literal

import openai
from local_server import LocalServer
from pydantic import BaseModel, ConfigDict

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name: str, properties: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "name": name,
        "parameters": {**parameters, "additionalProperties": False},
        **fields,
    }


WEATHER = tool("get_weather", {"city": {"enum": ["Paris", "Rome"]}}, description="Weather of a city")
CLOCK = tool("get_time", {"zone": {"const": "Europe/Paris"}}, strict=True)
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "input": QUESTION,
    "max_output_tokens": 80,
    "temperature": 0,
    "tools": [WEATHER, CLOCK],
    "parallel_tool_calls": False,
}
NAMED = {"type": "function", "name": "get_time"}


TIME = {"zone": "Europe/Paris"}
# Texts of calls in the model's form.
CITY_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Paris"}}\n</tool_call>'


def only_call(response: Any) -> Any:
    (item,) = response.output
    assert item.type == "function_call"
    return item


def check_call(response: Any) -> None:
    """Check a response with one call of a tool by its schema."""
    call = only_call(response)
    assert (response.status, call.status) == ("completed", "completed")
    assert call.id and call.call_id
    assert (call.name, json.loads(call.arguments)) in [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
        ("get_time", TIME),
    ]
    assert [found.name for found in response.tools] == ["get_weather", "get_time"]


def test_required_call_follows_the_schema_of_its_tool(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    request = REQUEST | {"tool_choice": "required"}
    with tiered_server.saying(CITY_CALL):
        check_call(tiered_client.responses.create(**request))
        with tiered_client.responses.stream(**request) as events:
            check_call(events.get_final_response())


def test_arguments_are_streamed_in_fragments_that_join_to_json(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    with tiered_server.saying(TIME_CALL):
        events = list(tiered_client.responses.create(**REQUEST, tool_choice=NAMED, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    fragments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(fragments) > 1
    assert json.loads("".join(fragments)) == TIME


def test_agent_calls_two_tools_and_answers(tiered_server: Any, tiered_client: openai.OpenAI) -> None:
    turns: list[Any] = list(QUESTION)
    for name, text, result in (
        ("get_weather", CITY_CALL, "Sunny"),
        ("get_time", TIME_CALL, "12:00"),
    ):
        choice = {"type": "function", "name": name}
        with tiered_server.saying(text):
            response = tiered_client.responses.create(**REQUEST | {"input": turns}, tool_choice=choice)
        call = only_call(response)
        assert call.name == name
        turns += response.output
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    answer = tiered_client.responses.create(**REQUEST | {"input": turns, "max_output_tokens": 8})
    assert answer.output_text


def test_allowed_tools_are_the_only_ones_that_are_called(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    with tiered_server.saying(TIME_CALL):
        response = tiered_client.responses.create(**REQUEST, tool_choice=choice)
    assert only_call(response).name == "get_time"


def test_grammar_of_allowed_tools_has_no_other(scripted: LocalServer) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    with scripted.saying(TIME_CALL):
        answer = scripted.post("/v1/responses", {**REQUEST, "tool_choice": choice})
    assert answer.status == 200
    grammar = scripted.core.requests[-1].params.structured_outputs.grammar
    assert "get_time" in grammar and "get_weather" not in grammar


class City(BaseModel):
    """The schema of an answer."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]


def test_parsed_answer_follows_the_schema_of_its_format(client: openai.OpenAI) -> None:
    request = REQUEST | {"tools": []}
    parsed = client.responses.parse(**request, text_format=City)
    assert parsed.output_parsed and parsed.output_parsed.city in ("Paris", "Rome")
    with client.responses.stream(**request, text_format=City) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_json_object_begins_with_a_brace(client: openai.OpenAI) -> None:
    response = client.responses.create(
        **REQUEST | {"tools": [], "max_output_tokens": 6}, text={"format": {"type": "json_object"}}
    )
    assert response.output_text.lstrip().startswith("{")
