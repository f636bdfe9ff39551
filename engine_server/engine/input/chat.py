"""Conversion of a conversation to a prompt by a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from engine_server.contract.base.bounds import PICTURES
from engine_server.contract.base.quoting import quote, shorten
from engine_server.engine.input.picture_parts import read_image_url
from engine_server.engine.input.pictures import PendingPictures
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.segment_cache import Sharers
from engine_server.engine.input.sent_picture import picture_of
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture
from engine_server.requests.prompts import TokensPrompt

Conversation = Sequence[Mapping[str, Any]]
# Probe text, to detect if a template renders the text of a content part or the part's Python repr.
PROBE = "content-part-probe"
PART_NOTATION = "'type'"
# A part in whose place a template writes the image token.
IMAGE = {"type": "image"}


def chat_prompt(processor: Processor, conversation: Conversation, options: Mapping[str, Any]) -> TokensPrompt:
    """Render a conversation to a prompt by the chat template, and tokenize it.

    options: arguments of the tokenizer's apply_chat_template. Contents may be lists of parts with texts, and with
    pictures where the model takes some; for a template that takes strings, texts alone are joined by newlines. Raises
    InvalidRequestError if the template refuses the conversation, or for a wrong picture.
    """
    tokenizer: Any = processor.tokenizer
    media = processor.media
    conversation = [_as_served(message) for message in conversation]
    pictures: list[Picture] = []
    if any(isinstance(message.get("content"), list) for message in conversation):
        conversation = [_with_image_parts(message, pictures, media is not None) for message in conversation]
        conversation = _fit_parts(tokenizer, conversation, options)
    if error := PICTURES._replace(limit=processor.config.max_pictures).exceeded(len(pictures)):
        raise InvalidRequestError(error, "messages")
    if media is None:
        text = _rendered(tokenizer, conversation, options)
        # The template adds the special tokens itself.
        token_ids = processor.encode(text, None, add_special_tokens=False, sharers=Sharers())
        return TokensPrompt(prompt_token_ids=token_ids, prompt=text)
    marks = media.new_marks()
    text = _rendered(tokenizer, marks.value(conversation), marks.value(options))
    with PendingPictures(media.pictures, pictures, None) as pending:
        marked = processor.encode_marked(text, marks, None, add_special_tokens=False, sharers=Sharers())
        whole = media.with_placeholders(marked, pending.wait())
    return TokensPrompt(
        prompt_token_ids=whole.token_ids, prompt=marks.restored(text), pictures=whole.pictures
    )


def _rendered(tokenizer: Any, conversation: Conversation, options: Mapping[str, Any]) -> str:
    try:
        text: str = tokenizer.apply_chat_template(list(conversation), tokenize=False, **options)
    except (TemplateError, ValueError) as error:
        reason = shorten(str(error))
        raise InvalidRequestError(f"the chat template refuses the messages: {reason}", "messages") from error
    return text


def _with_image_parts(
    message: Mapping[str, Any], pictures: list[Picture], takes_pictures: bool
) -> Mapping[str, Any]:
    """Return a message whose pictures are added to `pictures`. Raises InvalidRequestError for other parts than text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts: list[Any] = []
    for part in content:
        match part:
            case str() | {"text": str()}:
                parts.append(part)
            case {"type": "image_url"} if takes_pictures:
                pictures.append(read_image_url(part).picture())
                parts.append(IMAGE)
            case {"type": "image", "image": bytes(data)} if takes_pictures:
                pictures.append(picture_of(data))
                parts.append(IMAGE)
            case _:
                taken = "text parts, and pictures as image_url or bytes" if takes_pictures else "text parts"
                raise InvalidRequestError(f"a content part is {quote(part)}; it takes {taken}", "messages")
    return {**message, "content": parts}


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
    if not isinstance(content, list) or IMAGE in content:
        return content
    return "\n".join(part if isinstance(part, str) else part["text"] for part in content)
