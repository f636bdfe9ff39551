"""Schemas of requests over HTTP: what is enforced, ignored by name, and refused."""

import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from local_server import LocalServer, serving
from server.conversation.recorded_answers import our_layout

from engine_server.server.api import schemas
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.ignored import IgnoredPart
from engine_server.server.http.errors import ApiError
from engine_server.structured.schemas.together import SchemaCache

MODEL = "smollm2"
CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Describe a cat."}]
NAMED = "x-fairlead-ignored"


def tool(name: str, schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


def object_of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


GOOD = tool("good", object_of(n={"type": "integer", "maximum": 9}))
LOOKS = tool("looks", object_of(m={"type": "string", "pattern": "^(?!a)b", "maxLength": 5}))
NEVER = tool("never", object_of(m={"type": "integer", "enum": ["a"]}))
REMOTE = tool("remote", object_of(m={"$ref": "https://example.com/schema.json"}))


def chat(server: LocalServer, **fields: Any) -> Any:
    return server.post(CHAT, {"model": MODEL, "messages": QUESTION, "max_tokens": 60, **fields})


def arguments(answer: Any) -> tuple[str, Any]:
    assert answer.status == 200, answer.body
    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def test_tool_with_an_unsupported_pattern_spoils_no_other(server: LocalServer) -> None:
    choice = {"type": "function", "function": {"name": "good"}}
    tools = [GOOD, LOOKS, NEVER, REMOTE]

    named = chat(server, tools=tools, tool_choice=choice)
    any_tool = chat(server, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=1)

    assert arguments(named)[0] == "good"
    assert NAMED not in named.headers
    assert any_tool.status == 200, any_tool.body
    assert any_tool.headers[NAMED] == (
        "tools.1.function.parameters.properties.m.pattern (look-around), "
        "tools.2.function.parameters.properties.m (contradiction), "
        "tools.3.function.parameters.properties.m._ref (reference)"
    )


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (NEVER, "tools.1.function.parameters.properties.m"),
        (REMOTE, "tools.1.function.parameters.properties.m._ref"),
    ],
    ids=["contradictory", "remote"],
)
def test_strict_or_named_tool_with_a_schema_of_no_use_is_refused_by_its_path(
    scripted: LocalServer, bad: dict[str, Any], path: str
) -> None:
    strict = {**bad, "function": {**bad["function"], "strict": True}}
    choice = {"type": "function", "function": {"name": bad["function"]["name"]}}

    for answer in (
        chat(scripted, tools=[GOOD, strict], tool_choice="required"),
        chat(scripted, tools=[GOOD, bad], tool_choice=choice),
    ):
        assert answer.status == 400
        assert answer.error["param"] == path
        assert answer.error["message"].startswith(f"{path}: ")


@pytest.mark.parametrize("field", ["response_format", "llama.cpp", "guided_json", "structured_outputs"])
def test_form_is_held_but_for_what_is_named(server: LocalServer, field: str) -> None:
    schema = object_of(a={"type": "string", "pattern": "\\bx", "maxLength": 3}, b={"enum": [1, None]})
    fields: dict[str, Any] = {
        "response_format": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "llama.cpp": {"response_format": {"type": "json_object", "schema": schema}},
        "guided_json": {"guided_json": schema},
        "structured_outputs": {"structured_outputs": {"json": schema}},
    }[field]
    paths = {
        "response_format": "response_format.json_schema.schema.",
        "llama.cpp": "response_format.schema.",
        "guided_json": "guided_json.",
        "structured_outputs": "structured_outputs.json.",
    }

    answer = chat(server, **fields, temperature=0, max_tokens=200)

    assert answer.status == 200, answer.body
    value = json.loads(answer.json["choices"][0]["message"]["content"])
    jsonschema.validate(value, object_of(a={"type": "string", "maxLength": 3}, b={"enum": [1, None]}))
    assert answer.headers[NAMED] == f"{paths[field]}properties.a.pattern (word_boundary)"


def test_messages_and_responses_name_what_they_do_not_enforce(scripted: LocalServer) -> None:
    schema = LOOKS["function"]["parameters"]
    message = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}
    response = {"model": MODEL, "input": "Describe a cat.", "max_output_tokens": 16}
    form = {"type": "json_schema", "schema": schema}
    claude_tool = {"name": "looks", "input_schema": schema}
    codex_tool = {"type": "function", "name": "looks", "parameters": schema, "strict": True}

    answers = [
        scripted.post("/v1/messages", message | {"output_config": {"format": form}}),
        scripted.post("/v1/messages", message | {"tools": [claude_tool], "tool_choice": {"type": "any"}}),
        scripted.post("/v1/responses", response | {"text": {"format": {"name": "f", **form}}}),
        scripted.post("/v1/responses", response | {"tools": [codex_tool]}),
    ]

    assert [answer.status for answer in answers] == [200] * 4, [answer.body for answer in answers]
    assert [answer.headers[NAMED] for answer in answers] == [
        "output_config.format.schema.properties.m.pattern (look-around)",
        "tools.0.input_schema.properties.m.pattern (look-around)",
        "text.format.schema.properties.m.pattern (look-around)",
        "tools.0.parameters.properties.m.pattern (look-around)",
    ]


def test_names_of_clients_are_cut_and_cleaned_and_the_header_stays_short(scripted: LocalServer) -> None:
    name = "é\r\nX-Injected: 1" * 100
    properties = {f"{name}{number}": {"type": "string", "pattern": "(?=a)"} for number in range(40)}
    same = [tool(f"tool{number}", LOOKS["function"]["parameters"]) for number in range(5)]

    long = chat(scripted, guided_json=object_of(**properties), max_tokens=1)
    equal = chat(scripted, tools=same, tool_choice="required", max_tokens=1)

    assert long.status == equal.status == 200, long.body
    assert "x-injected" not in long.headers
    assert len(long.headers[NAMED]) <= 1024
    assert equal.headers[NAMED] == "tools.0.function.parameters.properties.m.pattern (look-around)"


LONG = tool("long", object_of(m={"type": "string", "pattern": "^[a-z]{6}$", "maxLength": 3}))
SCRIPT = tool("script", {"type": "object", "properties": {"m": {"type": "string", "pattern": r"\p{Foo}"}}})


def test_tool_with_a_schema_that_only_the_grammar_refuses_spoils_no_other(
    server: LocalServer, scripted: LocalServer
) -> None:
    choice = {"type": "function", "function": {"name": "good"}}
    tools = [GOOD, LONG, SCRIPT]

    named = chat(server, tools=tools, tool_choice=choice)
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 1}
    any_tool = chat(scripted, **asked)
    streamed = chat(scripted, **asked, stream=True)

    assert arguments(named)[0] == "good"
    assert NAMED not in named.headers
    assert any_tool.status == streamed.status == 200, any_tool.body
    assert any_tool.headers[NAMED] == streamed.headers[NAMED] == "tools.1.function.parameters (unusable)"


@pytest.mark.parametrize("bad", [LONG, SCRIPT], ids=["contradictory", "unknown class"])
def test_strict_or_named_tool_whose_schema_only_the_grammar_refuses_is_refused_by_its_path(
    scripted: LocalServer, bad: dict[str, Any]
) -> None:
    name = bad["function"]["name"]
    strict = {**bad, "function": {**bad["function"], "strict": True}}
    path = "tools.1.function.parameters"

    for answer in (
        chat(scripted, tools=[GOOD, strict], tool_choice="required"),
        chat(scripted, tools=[GOOD, strict]),
        chat(scripted, tools=[GOOD, bad], tool_choice={"type": "function", "function": {"name": name}}),
    ):
        assert (answer.status, answer.error["param"]) == (400, path)
        assert answer.error["message"].startswith(f"{path}: the schema of the tool {name!r} can't be used: ")


def test_form_that_only_the_grammar_refuses_is_refused_by_its_path_beside_tools(
    scripted: LocalServer,
) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": LONG["function"]["parameters"]}}

    answer = chat(scripted, tools=[GOOD], response_format=form)

    assert (answer.status, answer.error["param"]) == (400, "response_format")
    assert answer.error["message"].startswith("response_format.json_schema.schema: ")


def in_tags(*tools: dict[str, Any], choice: Any = "required") -> schemas.RequestSchemas:
    """Return the schemas of a request to a model whose calls have a tag for each argument."""
    fields = {"model": MODEL, "messages": QUESTION, "tools": tools, "tool_choice": choice}
    body = parse_request(ChatRequest, json.dumps(fields).encode())
    return schemas.request_schemas(body, our_layout("qwen3_coder"), strict=False)


@pytest.mark.parametrize("name", ["two\nlines", "a>b", " edge", ""])
def test_tool_with_a_property_that_no_tag_can_name_is_relaxed_or_refused(name: str) -> None:
    odd = tool("odd", object_of(**{name: {"type": "string"}}))
    path = f"tools.1.function.parameters.properties.{name}"

    relaxed = in_tags(GOOD, odd)
    with pytest.raises(ApiError, match="this model's calls can't have this name") as refused:
        in_tags(GOOD, odd, choice={"type": "function", "function": {"name": "odd"}})

    assert relaxed.relaxed == (IgnoredPart(path, "name"),)
    assert relaxed.style and relaxed.style.tools
    assert list(relaxed.style.tools.schemas or ()) == ["tools.0.function.parameters"]
    assert refused.value.status == 400


def test_alternatives_that_the_grammar_of_tags_leaves_out_are_named() -> None:
    forms = [object_of(**{f"p{number}": {"type": "integer"}}) for number in range(17)]
    texts = [{"type": "string", "pattern": f"^{number}$"} for number in range(17)]

    many = in_tags(
        tool("many", {"type": "object", "anyOf": forms}), tool("text", object_of(m={"anyOf": texts}))
    )
    few = in_tags(
        tool("few", {"type": "object", "anyOf": forms[:16]}), tool("text", object_of(m={"anyOf": texts[:16]}))
    )

    assert [str(part) for part in many.relaxed] == [
        "tools.0.function.parameters (too_many_alternatives)",
        "tools.1.function.parameters.properties.m (too_many_alternatives)",
    ]
    assert few.relaxed == ()


def test_schemas_of_a_request_are_looked_up_once(
    scripted: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = []
    cache = SchemaCache()
    monkeypatch.setattr(
        schemas, "CACHE", SimpleNamespace(relax=lambda *one: lookups.append(one) or cache.relax(*one))
    )

    answer = chat(scripted, tools=[GOOD, LOOKS], tool_choice="required", max_tokens=1)

    assert answer.headers[NAMED] == "tools.1.function.parameters.properties.m.pattern (look-around)"
    assert len(lookups) == 1


def test_strict_server_refuses_what_would_be_ignored() -> None:
    with serving("--strict-schemas") as server:
        answer = chat(server, tools=[GOOD, LOOKS], tool_choice="required")
        plain = chat(server, tools=[GOOD, LOOKS], max_tokens=1)

    path = "tools.1.function.parameters.properties.m.pattern"
    assert (answer.status, answer.error["param"]) == (400, path)
    assert answer.error["message"] == f"{path}: pattern (look-around) can't be enforced"
    assert plain.status == 200
