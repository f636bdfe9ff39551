"""Conversion of a conversation to a prompt by a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from engine_server.contract.base.quoting import quote, shorten
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.segment_cache import Sharers
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import TokensPrompt

Conversation = Sequence[Mapping[str, Any]]
# Probe text, to detect if a template renders the text of a content part or the part's Python repr.
PROBE = "content-part-probe"
PART_NOTATION = "'type'"


def chat_prompt(
    processor: Processor, tokenizer: Any, conversation: Conversation, options: Mapping[str, Any]
) -> TokensPrompt:
    """Render a conversation to a prompt by the chat template, and tokenize it.

    tokenizer: transformers' own. options: arguments of its apply_chat_template. Contents may be lists of text
    parts; for a template that takes strings they are joined by newlines. Raises InvalidRequestError if the template
    refuses the conversation.
    """
    conversation = [_as_served(message) for message in conversation]
    if any(isinstance(message.get("content"), list) for message in conversation):
        conversation = _fit_parts(tokenizer, conversation, options)
    try:
        text: str = tokenizer.apply_chat_template(list(conversation), tokenize=False, **options)
    except (TemplateError, ValueError) as error:
        reason = shorten(str(error))
        raise InvalidRequestError(f"the chat template refuses the messages: {reason}", "messages") from error
    # The template adds the special tokens itself.
    token_ids = processor.encode(text, None, add_special_tokens=False, sharers=Sharers())
    return TokensPrompt(prompt_token_ids=token_ids, prompt=text)


def _as_served(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as the chat API of the server gives it to templates: null is "", and arguments are objects."""
    served = {**message, "content": ""} if message.get("content") is None else message
    calls = message.get("tool_calls")
    return {**served, "tool_calls": [_with_object(call) for call in calls]} if calls else served


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call whose arguments are an object, if they are the JSON of one."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def _fit_parts(tokenizer: Any, conversation: Conversation, options: Mapping[str, Any]) -> Conversation:
    """Return the conversation with contents in the form that the template expects: lists of parts, or strings."""
    probe = [{"role": "user", "content": [{"type": "text", "text": PROBE}]}]
    template = {"chat_template": options.get("chat_template")}
    try:
        shown: str = tokenizer.apply_chat_template(probe, tokenize=False, **template)
    except (TemplateError, TypeError, ValueError):
        shown = ""
    if PROBE in shown and PART_NOTATION not in shown:
        return conversation
    return [{**message, "content": _joined_text(message.get("content"))} for message in conversation]


def _joined_text(content: object) -> object:
    """Return the text parts of a content as one string; other contents are unchanged."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise InvalidRequestError(f"a content part is {quote(part)}; it takes text parts", "messages")
        texts.append(text)
    return "\n".join(texts)
