"""The beginning of an answer that the prompt has already: the chat template's opening, and the text to continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from engine_server.server.generation.chat_turns import ChatTurns

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
# Openings that are kept, and the longest description of their variables.
MAX_OPENINGS = 256
MAX_VARIABLES = 1024


class AnswerStart(NamedTuple):
    """The part of an answer that the prompt ends with."""

    # Text that the template adds for the answer.
    opening: str = ""
    # Text of the last message, which the answer continues.
    prefill: str = ""


NO_START = AnswerStart()


def answer_start(tokenizer: Any, turns: ChatTurns, template: str, prompt: str) -> AnswerStart:
    """Return how the answer to a conversation begins. Text of the conversation that looks like an opening is none.

    template: that of the conversation. prompt: the conversation as the template renders it.
    """
    if turns.continue_last:
        return continued_start(tokenizer, turns, template, prompt)
    if not turns.open_answer:
        return NO_START
    opening = usual_opening(tokenizer, turns, template)
    if opening is None or not prompt.endswith(opening):  # a template may look at the conversation's texts
        opening = added(prompt, rendered(tokenizer, turns.messages, template, turns.tools, turns.variables))
    return AnswerStart(opening or "")


def continued_start(tokenizer: Any, turns: ChatTurns, template: str, prompt: str) -> AnswerStart:
    before = rendered(tokenizer, turns.messages[:-1], template, turns.tools, turns.variables)
    opened = added(prompt, before)
    content = turns.messages[-1].get("content")
    prefill = content.strip() if isinstance(content, str) else ""
    place = -1 if opened is None else opened.rfind(prefill)
    if opened is None or place < 0:
        return AnswerStart("", prefill)
    return AnswerStart(opened[:place], opened[place:])


def usual_opening(tokenizer: Any, turns: ChatTurns, template: str) -> str | None:
    """Return the opening of the answer to a short conversation with the same variables; None if there is none."""
    try:
        variables = json.dumps(dict(turns.variables), sort_keys=True)
    except (TypeError, ValueError):
        return None
    if len(variables) > MAX_VARIABLES:
        return None
    after_tool = bool(turns.messages) and turns.messages[-1].get("role") == "tool"
    return kept_opening(tokenizer, template, variables, after_tool)


@lru_cache(MAX_OPENINGS)
def kept_opening(tokenizer: Any, template: str, variables: str, after_tool: bool) -> str | None:
    return opening_of(tokenizer, TOOL_TURNS if after_tool else USER_TURNS, template, json.loads(variables))


def opening_of(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], template: str, variables: Mapping[str, Any]
) -> str | None:
    """Return the text that a template adds to a conversation for the answer; None if it refuses the conversation."""
    opened = rendered(tokenizer, messages, template, None, variables, opens=True)
    return added(opened, rendered(tokenizer, messages, template, None, variables))


def rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    template: str,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    opens: bool = False,
) -> str | None:
    """Return a conversation as a template renders it, with the opening of the answer or without; None if it refuses."""
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                chat_template=template,
                tools=tools,
                add_generation_prompt=opens,
                **variables,
            )
        )
    except Exception:  # a template may raise any
        return None


def added(text: str | None, beginning: str | None) -> str | None:
    """Return what a text has after its beginning; None if it begins otherwise."""
    if text is None or beginning is None or not text.startswith(beginning):
        return None
    return text[len(beginning) :]
