"""Histories with a word in each part, as each API has them, and chat templates that print them in different ways."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.generation_request import GenerationRequest, parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.responses.request import ResponsesRequest

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
TURN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
)
REASONING = "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
END = "{% endfor %}{{ '' if tools }}{% if add_generation_prompt %}<assistant>{% endif %}"
WHOLE = TURN.replace("{{ m.content }}", REASONING + "{{ m.content }}") + CALLS + END
EXCLUSIVE = (
    "{% if m.reasoning_content and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
)
# The turns that count for the alternation, as Mistral's templates count them.
ALTERNATING = """{% set ns = namespace(user=true) %}{% for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.user = not ns.user %}{% endif %}{% endfor %}"""
# By what they do with a history.
TEMPLATES = {
    "all of it": WHOLE,
    "alternating turns": ALTERNATING + WHOLE,
    "short ids": WHOLE.replace(
        "{% for c",
        "{% for c in m.tool_calls or [] if c.id | length != 9 %}{{ raise_exception('nine') }}{% endfor %}{% for c",
        1,
    ),
    "one system message": WHOLE.replace(
        "<{{", "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}<{{", 1
    ),
    "first system message alone": "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    + WHOLE.replace("in messages %}", "in messages if m.role != 'system' %}", 1),
    "no system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    + ALTERNATING
    + WHOLE,
    "text or calls": WHOLE.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}"),
    "one call": WHOLE.replace("{% for c in m.tool_calls or [] %}", "{% for c in (m.tool_calls or [])[:1] %}"),
    "thoughts or text beside calls": WHOLE.replace(END, EXCLUSIVE + END),
    "no tools": WHOLE.replace("{{ '' if tools }}", "").replace(CALLS, ""),
    "no calls": WHOLE.replace(CALLS, ""),
    "lists of parts": WHOLE.replace(
        "{{ m.content }}", "{% for part in m.content if part.type %}{{ part.text }}{% endfor %}"
    ),
}

# A history is turns: a role with a word, or an answer with its parts and the results of its calls.
Turns = list[tuple[str, Any]]


@st.composite
def histories(draw: st.DrawFn) -> Turns:
    """Return a history, whose words are numbered in its order."""
    number = 0

    def word() -> str:
        nonlocal number
        number += 1
        return f"word{number}z"

    turns: Turns = [("system", word()) for _ in range(draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(1, 2))):
        turns.append(("user", word()))
        if draw(st.booleans()):
            turns.append(("system", word()))
        for step in range(draw(st.integers(0, 2))):
            kinds = draw(st.sampled_from([(), ("thinking",), ("text",), ("thinking", "text")]))
            parts = [(kind, word()) for kind in kinds]
            calls = [(f"call_{number}_{step}_{index}", word()) for index in range(draw(st.integers(1, 2)))]
            turns.append(("assistant", parts + [("call", call) for call in calls]))
            turns += [("result", (id, word())) for id, _ in calls]
        thought = [("thinking", word())] if draw(st.booleans()) else []
        turns.append(("assistant", [*thought, ("text", word())]))
    turns.append(("user", word()))
    return turns


def chat_body(turns: Turns) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for role, content in turns:
        if role == "result":
            messages.append({"role": "tool", "tool_call_id": content[0], "content": content[1]})
        elif role != "assistant":
            messages.append({"role": role, "content": content})
        else:
            texts = {kind: text for kind, text in content if kind != "call"}
            calls = [
                {
                    "id": call[0],
                    "type": "function",
                    "function": {"name": "f", "arguments": json.dumps({"x": call[1]})},
                }
                for kind, call in content
                if kind == "call"
            ]
            message = {"role": role, "content": texts.get("text"), "reasoning_content": texts.get("thinking")}
            messages.append({**message, "tool_calls": calls or None})
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def messages_body(turns: Turns) -> dict[str, Any]:
    def block(kind: str, content: Any) -> dict[str, Any]:
        match kind:
            case "thinking":
                return {"type": "thinking", "thinking": content, "signature": ""}
            case "call":
                return {"type": "tool_use", "id": content[0], "name": "f", "input": {"x": content[1]}}
            case _:
                return {"type": "text", "text": content}

    messages: list[dict[str, Any]] = []
    for role, content in turns:
        if role == "result":
            result = {"type": "tool_result", "tool_use_id": content[0], "content": content[1]}
            messages.append({"role": "user", "content": [result]})
        elif role == "assistant":
            messages.append({"role": role, "content": [block(*part) for part in content]})
        else:
            messages.append({"role": role, "content": content})
    tools = [{"name": "f", "description": "d", "input_schema": SCHEMA}]
    return {"model": "m", "max_tokens": 1, "messages": messages, "tools": tools}


def responses_body(turns: Turns) -> dict[str, Any]:
    def item(kind: str, content: Any) -> dict[str, Any]:
        match kind:
            case "thinking":
                text = {"type": "reasoning_text", "text": content}
                return {"type": "reasoning", "summary": [], "content": [text]}
            case "call":
                arguments = json.dumps({"x": content[1]})
                return {"type": "function_call", "call_id": content[0], "name": "f", "arguments": arguments}
            case _:
                return {"role": "assistant", "content": [{"type": "output_text", "text": content}]}

    items: list[dict[str, Any]] = []
    for role, content in turns:
        if role == "result":
            items.append({"type": "function_call_output", "call_id": content[0], "output": content[1]})
        elif role == "assistant":
            items += [item(*part) for part in content]
        else:
            items.append({"role": role, "content": content})
    tools = [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}]
    return {"model": "m", "input": items, "tools": tools}


BODIES: dict[type[GenerationRequest], Callable[[Turns], dict[str, Any]]] = {
    ChatRequest: chat_body,
    MessagesRequest: messages_body,
    ResponsesRequest: responses_body,
}


def requests_of(turns: Turns) -> list[GenerationRequest]:
    """Return the request that each API has for a history."""
    return [parse_request(kind, json.dumps(body(turns)).encode()) for kind, body in BODIES.items()]


def words_of(turns: Turns) -> list[str]:
    """Return the words of a history, except those of thoughts, which templates may drop."""
    words = []
    for role, content in turns:
        if role == "assistant":
            words += [part[1] if kind == "call" else part for kind, part in content if kind != "thinking"]
        else:
            words.append(content[1] if role == "result" else content)
    return words
