"""Edits of a conversation that Anthropic's beta asks for, and output_format."""

from pathlib import Path
from typing import Any
from unittest import mock

import anthropic
import pytest
from anthropic.types.beta import BetaContextManagementResponse
from local_server import LocalServer, serving

from engine_server.contract.wire import headers
from engine_server.server.api import create_answer

PATH = "/v1/messages"
RESULT = "A long result of a tool. " * 20
CLEAR_TOOLS = "clear_tool_uses_20250919"
CLEAR_THINKING = "clear_thinking_20251015"


def user(*content: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    return {"role": "user", "content": blocks}


def used(number: int, name: str = "look") -> list[dict[str, Any]]:
    """Return a tool call with reasoning before it, and its result."""
    thinking = {"type": "thinking", "thinking": f"Thought {number}.", "signature": "s"}
    call = {"type": "tool_use", "id": f"c{number}", "name": name, "input": {"place": f"Place {number}"}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"{number}: {RESULT}"}
    return [{"role": "assistant", "content": [thinking, call]}, user(result)]


CONVERSATION = [user("Begin."), *used(0), *used(1, "read"), *used(2), *used(3)]
CALLS = ["look", "read", "look", "look"]


def edit(kind: str = CLEAR_TOOLS, **fields: Any) -> dict[str, Any]:
    trigger = {} if kind == CLEAR_THINKING else {"trigger": {"type": "input_tokens", "value": 10}}
    return {"type": kind, **trigger, **fields}


def keep(number: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": number}


def ask(
    server: LocalServer, *edits: Any, path: str = PATH, messages: Any = CONVERSATION, **fields: Any
) -> Any:
    management = {"context_management": {"edits": list(edits)}} if edits else {}
    body = {"model": "smollm2", "max_tokens": 1, "messages": messages, **management, **fields}
    return server.post(path, body)


def prompt_of(server: LocalServer) -> str:
    tokenizer = server.host.model.tokenizer
    assert tokenizer is not None
    return str(tokenizer.decode(server.core.requests[-1].token_ids()))


def cleared_results(server: LocalServer) -> list[int]:
    """Return the numbers of the results that the prompt doesn't have."""
    prompt = prompt_of(server)
    return [number for number in range(len(CALLS)) if f"{number}: A long result" not in prompt]


def num_tokens(server: LocalServer, **fields: Any) -> int:
    return int(ask(server, path=f"{PATH}/count_tokens", **fields).json["input_tokens"])


@pytest.mark.parametrize(
    ("fields", "cleared"),
    [
        ({}, [0]),
        ({"keep": keep(1)}, [0, 1, 2]),
        ({"keep": keep(0)}, [0, 1, 2, 3]),
        ({"keep": keep(1), "exclude_tools": ["read"]}, [0, 2]),
        ({"keep": keep(1), "trigger": keep(3)}, [0, 1, 2]),
        ({"keep": keep(1), "trigger": keep(4)}, []),
        ({"keep": keep(1), "trigger": {"type": "input_tokens", "value": 5000}}, []),
        ({"keep": keep(1), "trigger": None}, []),
        ({"keep": keep(3), "clear_at_least": {"type": "input_tokens", "value": 50}}, [0]),
        ({"keep": keep(3), "clear_at_least": {"type": "input_tokens", "value": 500}}, []),
    ],
)
def test_old_tool_results_are_cleared(
    scripted: LocalServer, fields: dict[str, Any], cleared: list[int]
) -> None:
    before = num_tokens(scripted)

    answer = ask(scripted, edit(**fields))

    assert answer.status == 200, answer.body
    assert cleared_results(scripted) == cleared
    assert prompt_of(scripted).count("[cleared]") == len(cleared)
    applied = answer.json["context_management"]["applied_edits"]
    usage = answer.json["usage"]
    after = usage["input_tokens"] + usage["cache_read_input_tokens"]
    report = {"type": CLEAR_TOOLS, "cleared_tool_uses": len(cleared), "cleared_input_tokens": before - after}
    assert applied == ([report] if cleared else [])
    BetaContextManagementResponse.model_validate(answer.json["context_management"], strict=True)


@pytest.mark.parametrize(
    ("inputs", "cleared"), [(None, []), (False, []), (True, [0, 1]), (["read"], [1]), ([], [])]
)
def test_inputs_of_cleared_calls_are_cleared_on_request(
    template_with_calls: LocalServer, inputs: Any, cleared: list[int]
) -> None:
    ask(template_with_calls, edit(keep=keep(2), clear_tool_inputs=inputs))
    prompt = prompt_of(template_with_calls)
    assert [number for number in range(4) if f"Place {number}" not in prompt] == cleared


@pytest.fixture(scope="module")
def template_with_calls(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose template writes reasoning and calls."""
    template = tmp_path_factory.mktemp("templates") / "calls.jinja"
    template.write_text(
        "{# tools <tool_call> #}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ message.reasoning_content }}{{ message.content }}{% for call in message.tool_calls %}"
        "{{ call.function.name }}{{ call.function.arguments }}{% endfor %}<|im_end|>\n{% endfor %}"
    )
    with serving(f"--chat-template={template}") as server:
        yield server


@pytest.mark.parametrize(
    ("fields", "cleared"),
    [
        ({}, [0, 1]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, []),
        ({"keep": "all"}, []),
        ({"keep": {"type": "all"}}, []),
    ],
)
def test_reasoning_of_old_turns_is_cleared(
    template_with_calls: LocalServer, fields: dict[str, Any], cleared: list[int]
) -> None:
    messages = [user("Begin."), *used(0), *used(1), user("Go on."), *used(2), *used(3)]
    answer = ask(template_with_calls, edit(CLEAR_THINKING, **fields), messages=messages)
    prompt = prompt_of(template_with_calls)
    assert [number for number in range(4) if f"Thought {number}" not in prompt] == cleared
    applied = answer.json["context_management"]["applied_edits"]
    assert [one["cleared_thinking_turns"] for one in applied] == ([1] if cleared else [])
    BetaContextManagementResponse.model_validate(answer.json["context_management"], strict=True)


def test_edits_are_applied_in_their_order_and_reported_by_a_streams_last_event(
    template_with_calls: LocalServer,
) -> None:
    messages = [user("Begin."), *used(0), user("Go on."), *used(1)]
    with anthropic.Anthropic(base_url=template_with_calls.url, api_key="none", max_retries=0) as client:
        events = list(
            client.beta.messages.create(
                model="smollm2",
                max_tokens=1,
                messages=messages,  # type: ignore[arg-type]
                stream=True,
                betas=["context-management-2025-06-27"],
                context_management={"edits": [edit(CLEAR_THINKING), edit(keep=keep(1))]},  # type: ignore[typeddict-item]
            )
        )
    [last] = [event for event in events if event.type == "message_delta"]
    assert last.context_management is not None
    assert [one.type for one in last.context_management.applied_edits] == [CLEAR_THINKING, CLEAR_TOOLS]
    assert all(one.cleared_input_tokens > 0 for one in last.context_management.applied_edits)


def test_conversation_that_fits_the_context_once_it_is_edited_is_answered(scripted: LocalServer) -> None:
    messages = [user("Begin."), *[one for number in range(12) for one in used(number)]]
    assert ask(scripted, messages=messages).status == 400
    answer = ask(scripted, edit(keep=keep(1)), messages=messages)
    assert answer.status == 200, answer.body
    count = ask(scripted, edit(keep=keep(1)), messages=messages, path=f"{PATH}/count_tokens").json
    assert count["input_tokens"] < 1024 < count["context_management"]["original_input_tokens"]


@pytest.mark.parametrize("edits", [[edit(keep=keep(1))], [edit(keep=keep(9))]])
def test_count_of_edited_messages_renders_the_unedited_ones_once(
    scripted: LocalServer, edits: list[Any]
) -> None:
    with mock.patch.object(create_answer, "tokenize", wraps=create_answer.tokenize) as tokenize:
        count = ask(scripted, *edits, path=f"{PATH}/count_tokens").json

    rendered = [str(call.args[1].conversations[0].messages) for call in tokenize.call_args_list]
    assert len([one for one in rendered if "0: A long" in one]) == 1
    assert count["context_management"]["original_input_tokens"] == num_tokens(scripted)


def test_continued_answer_has_the_edits_of_the_day_on_which_it_began(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ 'long ago ' * 100 * (2020 - strftime_now('%Y')|int) }}{% for m in messages %}{{ m }}{% endfor %}"
    )
    trigger = {"type": "input_tokens", "value": 2000}
    body = {
        "model": "smollm2",
        "max_tokens": 9,
        "messages": [user("Begin."), *used(0), *used(1)],
        "context_management": {"edits": [{"type": CLEAR_TOOLS, "trigger": trigger, "keep": keep(1)}]},
    }
    with serving(f"--chat-template={template}", "--max-model-len=8192") as server:
        state = {"id": "msg_1", "created": 10**9, "seed": 1, "model": server.host.model.fingerprint}
        resume = {"resume": {**state, "token_ids": [], "events": 0}}
        continued = {**body, "stream": True, "fairlead": resume}
        begun = server.post(PATH, body)
        answer = server.request("POST", PATH, continued, {headers.RESUME: "1"})

    assert begun.json["context_management"]["applied_edits"] == []
    assert answer.status == 200 and b'"cleared_tool_uses":1' in answer.body, answer.body


def test_media_of_cleared_results_are_not_named(scripted: LocalServer) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    old, new = used(0), used(1)
    old[1]["content"][0]["content"] = [picture]
    messages = [user("Begin."), *old, *new]
    assert ask(scripted, messages=messages).headers["x-fairlead-ignored"]
    assert "x-fairlead-ignored" not in ask(scripted, edit(keep=keep(1)), messages=messages).headers


@pytest.mark.parametrize("management", [{}, {"edits": []}, {"edits": None}])
def test_no_edits_are_none_applied(scripted: LocalServer, management: dict[str, Any]) -> None:
    answer = ask(scripted, context_management=management)
    assert answer.json["context_management"] == {"applied_edits": []}
    assert "context_management" not in ask(scripted).json


def test_other_edits_are_refused_by_name(scripted: LocalServer) -> None:
    answer = ask(scripted, {"type": "compact_20260112"})
    assert answer.status == 400
    message = answer.json["error"]["message"]
    assert "context_management.edits.0" in message
    assert "an edit of type compact_20260112, which is not supported" in message
    assert CLEAR_TOOLS in message


@pytest.mark.parametrize("field", ["exclude_tools", "clear_tool_inputs"])
def test_lists_of_tools_are_bounded(scripted: LocalServer, field: str) -> None:
    answer = ask(scripted, edit(**{field: ["look"] * 513}))
    assert answer.status == 400
    assert field in answer.json["error"]["message"]


def test_names_of_a_calls_arguments_count_as_text(scripted: LocalServer) -> None:
    call = {"type": "tool_use", "id": "c0", "name": "look", "input": {"a" * (5 << 20): 1}}
    messages = [user("Begin."), {"role": "assistant", "content": [call]}, used(0)[1]]
    answer = ask(scripted, edit(keep=keep(0)), messages=messages)
    assert answer.status == 400
    assert "UTF-8 bytes in a text to tokenize" in answer.json["error"]["message"]


FORM = {"type": "json_schema", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def test_output_format_is_the_answers_form(scripted: LocalServer) -> None:
    grammars = []
    for fields in ({"output_format": FORM}, {"output_config": {"format": FORM}}):
        assert ask(scripted, messages=[user("Where?")], **fields).status == 200
        grammars.append(scripted.core.requests[-1].params.structured_outputs)
    assert grammars[0] is not None
    assert grammars[0] == grammars[1]


def test_output_format_is_named_where_it_is_wrong(scripted: LocalServer) -> None:
    both = ask(scripted, output_format=FORM, output_config={"format": FORM})
    assert both.status == 400
    assert "output_format and output_config.format are given" in both.json["error"]["message"]
    wrong = {
        "type": "json_schema",
        "schema": {"type": "object", "pattern": 3, "properties": {"a": {"type": 3}}},
    }
    refused = ask(scripted, output_format=wrong, messages=[user("Where?")])
    assert refused.status == 400
    assert "output_config" not in refused.json["error"]["message"]


def test_conversation_that_takes_too_long_to_count_is_refused(scripted: LocalServer) -> None:
    messages = [user("Begin." + "a" * (5 << 20)), *used(0)]
    with scripted.probed():
        answer = ask(scripted, edit(keep=keep(0)), messages=messages)
    assert answer.status == 400
    assert "UTF-8 bytes in a text to tokenize" in answer.json["error"]["message"]
