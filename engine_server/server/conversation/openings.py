"""The text that a chat template adds to a conversation for its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from engine_server.engine.conversation.chat_template import ChatTemplate, TemplateRefusedError

# Templates may open an answer to a tool's result otherwise than one to a user.
USER_TURNS: tuple[dict[str, Any], ...] = ({"role": "user", "content": "?"},)
TOOL_TURNS: tuple[dict[str, Any], ...] = (
    *USER_TURNS,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "probe1234", "type": "function", "function": {"name": "probe", "arguments": {}}}
        ],
    },
    {"role": "tool", "tool_call_id": "probe1234", "name": "probe", "content": "?"},
)
# The variables by which chat templates switch the reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")
# Openings that are kept, and the longest description of their variables.
MAX_OPENINGS = 256
MAX_VARIABLES = 1024


def usual_opening(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str | None:
    """Return the opening of the answer to a short conversation that ends as `messages`; None if there is none."""
    try:
        described = json.dumps(dict(variables), sort_keys=True)
    except (TypeError, ValueError):
        return None
    if len(described) > MAX_VARIABLES:
        return None
    tokens = json.dumps(template.special_tokens, sort_keys=True)
    after_tool = bool(messages) and messages[-1].get("role") == "tool"
    return kept_opening(template.text, tokens, described, after_tool)


@lru_cache(MAX_OPENINGS)
def kept_opening(text: str, special_tokens: str, variables: str, after_tool: bool) -> str | None:
    template = ChatTemplate(text, json.loads(special_tokens))
    return opening_of(template, TOOL_TURNS if after_tool else USER_TURNS, json.loads(variables))


def opening_of(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str | None:
    """Return the text that a template adds to a conversation for the answer; None if it refuses the conversation."""
    try:
        opened = template.probe(messages, None, True, variables)
        return added(opened, template.probe(messages, None, False, variables))
    except TemplateRefusedError:
        return None


def added(text: str, beginning: str) -> str | None:
    """Return what a text has after its beginning; None if it begins otherwise."""
    return text[len(beginning) :] if text.startswith(beginning) else None
