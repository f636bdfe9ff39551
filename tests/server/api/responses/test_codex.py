"""Requests in the form of OpenAI's coding agent: functions in namespaces, tools of one text, and hosted tools."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from local_server import LocalServer, serving

from engine_server.server.api import read_request
from engine_server.server.api.ignored import IgnoredNames

RESPONSES = "/v1/responses"
PATCH = '*** Begin Patch\n*** Add File: a.txt\n+"hé"\n*** End Patch'
FUNCTION = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Tools in the agents namespace.",
    "tools": [
        {**FUNCTION, "name": "spawn_agent"},
        {**FUNCTION, "name": "exec_command", "defer_loading": True},
        {"type": "image_generation", "output_format": "png"},
    ],
}
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
WEB_SEARCH = {"type": "web_search", "external_web_access": False}
TOOL_SEARCH = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}}
REQUEST: dict[str, Any] = {
    "model": "smollm2",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: on."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
    ],
    "tools": [FUNCTION, NAMESPACE, CUSTOM, WEB_SEARCH, TOOL_SEARCH],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "5f9c",
    "text": {"verbosity": "low"},
}
# The agent sends it too; the client library doesn't know it.
REQUEST_BODY = REQUEST | {"client_metadata": {"turn": "1"}}
IGNORED = "tools.1.tools.2 (image_generation), tools.3 (web_search), tools.4 (tool_search), tools.2.format (grammar)"


def call(name: str, **arguments: str) -> str:
    """Return the text of a call in the model's form."""
    content = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"


def answered(server: LocalServer, text: str, **fields: Any) -> tuple[Any, list[Any]]:
    """Return the only item of a whole answer with this text, and the events of a streamed one."""
    with server.saying(text), server.client() as client:
        whole = client.responses.create(**REQUEST | fields)
        events = list(client.responses.create(**REQUEST | fields, stream=True))
    (item,) = whole.output
    (streamed,) = events[-1].response.output
    assert (streamed.type, streamed.name) == (item.type, item.name)
    return item, events


@pytest.mark.parametrize(
    ("called", "namespace", "name"),
    [
        ("exec_command", None, "exec_command"),
        ("agents__exec_command", "agents", "exec_command"),
        ("agents__spawn_agent", "agents", "spawn_agent"),
        ("spawn_agent", "agents", "spawn_agent"),
    ],
)
def test_call_has_the_namespace_and_the_bare_name_of_its_tool(
    scripted: LocalServer, called: str, namespace: str | None, name: str
) -> None:
    item, events = answered(scripted, call(called, cmd="ls"))

    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", name, {"cmd": "ls"})
    assert item.namespace == namespace
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [(one.name, one.namespace) for one in added] == [(name, namespace)]


def test_call_of_a_custom_tool_has_its_text_as_input(scripted: LocalServer) -> None:
    item, events = answered(scripted, call("apply_patch", input=PATCH))

    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", PATCH)
    assert [event.type.removeprefix("response.") for event in events[2:]] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert events[2].item.input == ""
    assert events[3].delta == events[4].input == events[5].item.input == PATCH


def test_text_that_is_not_in_the_tools_parameter_is_the_input_as_it_is(scripted: LocalServer) -> None:
    item, _ = answered(scripted, call("apply_patch", patch="x"))
    assert json.loads(item.input) == {"patch": "x"}


def test_prompt_has_the_joined_names_and_a_function_of_one_string(scripted: LocalServer) -> None:
    answer = scripted.post(RESPONSES, REQUEST_BODY | {"max_output_tokens": 1})
    assert answer.status == 200, answer.body
    prompt = scripted.host.model.tokenizer.decode(scripted.core.requests[-1].token_ids())  # type: ignore[union-attr]

    assert "You are a coding agent.\n\nSandbox: on.\n\nYou may call" in prompt
    tools = [json.loads(line)["function"] for line in prompt.splitlines() if line.startswith('{"type"')]
    assert [tool["name"] for tool in tools] == [
        "exec_command",
        "agents__spawn_agent",
        "agents__exec_command",
        "apply_patch",
    ]
    assert tools[3]["parameters"]["properties"] == {"input": {"type": "string"}}
    assert "web_search" not in prompt and "image_generation" not in prompt


def test_ignored_tools_and_grammars_are_named_in_the_answer_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_request, "ignored_types", IgnoredNames("part of type"))
    unknown = {"type": "brand_new\r\nX-Injected: 1 é"}
    with serving() as server, caplog.at_level(logging.WARNING):
        answers = [
            server.post(RESPONSES, REQUEST_BODY | {"max_output_tokens": 1, "stream": stream})
            for stream in (False, True)
        ]
        other = server.post(RESPONSES, REQUEST_BODY | {"max_output_tokens": 1, "tools": [unknown] * 20})
        plain = server.post(RESPONSES, REQUEST_BODY | {"max_output_tokens": 1, "tools": [FUNCTION]})

    assert [answer.headers["x-fairlead-ignored"] for answer in answers] == [IGNORED, IGNORED]
    named = other.headers["x-fairlead-ignored"]
    assert named.startswith("tools.0 (brand_new__X-Injected:_1__), ") and named.endswith(", and 4 more")
    assert "x-fairlead-ignored" not in plain.headers
    logged = [record.getMessage() for record in caplog.records if "tool_search" in record.getMessage()]
    assert logged == ["a request has the part of type 'tool_search'; it is ignored"]


@pytest.fixture(scope="module")
def strict() -> Iterator[LocalServer]:
    with serving("--strict-tools") as server:
        yield server


def test_strict_server_refuses_tools_of_other_types_by_name(strict: LocalServer) -> None:
    for path in (RESPONSES, f"{RESPONSES}/input_tokens"):
        answer = strict.post(path, REQUEST)
        assert (answer.status, answer.error["param"]) == (400, "tools.1.tools.2")
        assert "tools.1.tools.2 (image_generation) is a tool of a type that" in answer.error["message"]
    known = strict.post(RESPONSES, REQUEST_BODY | {"tools": [FUNCTION, CUSTOM], "max_output_tokens": 1})
    assert known.status == 200
    anthropic = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert strict.post("/v1/messages", body | {"tools": [anthropic]}).status == 400


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "function", "name": "exec_command"}, "exec_command"),
        ({"type": "function", "name": "spawn_agent"}, "agents__spawn_agent"),
        ({"type": "function", "name": "exec_command", "namespace": "agents"}, "agents__exec_command"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "spawn_agent"}],
            },
            "agents__spawn_agent",
        ),
    ],
)
def test_choice_of_a_tool_is_found_by_its_names(
    scripted: LocalServer, choice: dict[str, Any], expected: str
) -> None:
    with scripted.saying(call(expected, cmd="ls", input="a")):
        answer = scripted.post(RESPONSES, REQUEST_BODY | {"tool_choice": choice})
    assert answer.status == 200, answer.body
    grammar = scripted.core.requests[-1].params.structured_outputs.grammar
    assert expected in grammar
    assert answer.json["output"][0]["type"].endswith("_call")


def test_session_of_three_turns_with_calls_and_a_screenshot(
    scripted: LocalServer, scripted_client: openai.OpenAI
) -> None:
    screenshot = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    turns: list[Any] = list(REQUEST["input"])

    def ask(text: str) -> list[Any]:
        """Ask the model, which answers with the text; return the items of its answer."""
        with scripted.saying(text):
            *_, completed = scripted_client.responses.create(**REQUEST | {"input": turns, "stream": True})
        assert completed.type == "response.completed"
        turns.extend(item.model_dump(exclude_none=True) for item in completed.response.output)
        return completed.response.output

    for text, kind, output in (
        ("I look.\n" + call("agents__exec_command", cmd="ls"), "function_call_output", "a.png"),
        (call("exec_command", cmd="view a.png"), "function_call_output", [screenshot]),
        (call("apply_patch", input=PATCH), "custom_tool_call_output", "Done"),
    ):
        *_, called = ask(text)
        turns.append({"type": kind, "call_id": called.call_id, "output": output})
        (answer,) = ask("Fixed.")
        assert answer.content[0].text == "Fixed."
        question = [{"type": "input_text", "text": "And now?"}]
        turns.append({"type": "message", "role": "user", "content": question})

    last = scripted.post(RESPONSES, REQUEST_BODY | {"input": turns, "max_output_tokens": 1})
    assert "input.8.output.0 (input_image)" in last.headers["x-fairlead-ignored"]
    prompt = scripted.host.model.tokenizer.decode(scripted.core.requests[-1].token_ids())  # type: ignore[union-attr]
    assert '{"name": "agents__exec_command", "arguments": {"cmd": "ls"}}' in prompt
    assert json.dumps({"input": PATCH}, ensure_ascii=False) in prompt
    assert "[image omitted]" in prompt
