"""Tools and text formats of /v1/responses with the real model, as OpenAI's own client sees them."""

import json
from typing import Any, Literal

import openai
import pytest
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


def only_call(response: Any) -> Any:
    (item,) = response.output
    assert item.type == "function_call"
    return item


@pytest.mark.parametrize("stream", [False, True])
def test_required_call_follows_the_schema_of_its_tool(client: openai.OpenAI, stream: bool) -> None:
    request = REQUEST | {"tool_choice": "required"}
    if stream:
        with client.responses.stream(**request) as events:
            response: Any = events.get_final_response()
    else:
        response = client.responses.create(**request)
    call = only_call(response)
    assert (response.status, call.status) == ("completed", "completed")
    assert call.id and call.call_id
    assert (call.name, json.loads(call.arguments)) in [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
        ("get_time", {"zone": "Europe/Paris"}),
    ]
    assert [found.name for found in response.tools] == ["get_weather", "get_time"]


def test_arguments_are_streamed_in_fragments_that_join_to_json(client: openai.OpenAI) -> None:
    events = list(client.responses.create(**REQUEST, tool_choice=NAMED, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    fragments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(fragments) > 1
    assert json.loads("".join(fragments)) == {"zone": "Europe/Paris"}


def test_agent_calls_two_tools_and_answers(client: openai.OpenAI) -> None:
    results = {"get_weather": "Sunny", "get_time": "12:00"}
    turns: list[Any] = list(QUESTION)
    for name in results:
        choice = {"type": "function", "name": name}
        response = client.responses.create(**REQUEST | {"input": turns}, tool_choice=choice)
        call = only_call(response)
        assert call.name == name
        turns += response.output
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": results[name]})
    answer = client.responses.create(**REQUEST | {"input": turns, "max_output_tokens": 8})
    assert answer.output_text


def test_allowed_tools_are_the_only_ones_that_are_called(client: openai.OpenAI) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    response = client.responses.create(**REQUEST, tool_choice=choice)
    assert only_call(response).name == "get_time"


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
