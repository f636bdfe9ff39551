"""The prompts of `LLM.chat`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import msgspec

from engine_server.contract.base.bounds import PICTURES
from engine_server.contract.base.quoting import quote, shorten
from engine_server.engine.conversation.capabilities import ALL_CAPABILITIES, Capabilities, ShownPictures
from engine_server.engine.conversation.chat_template import (
    MAX_TEMPLATES,
    RESERVED_VARIABLES,
    ChatTemplate,
    TemplateRefusedError,
)
from engine_server.engine.conversation.messages import template_messages, template_tools
from engine_server.engine.conversation.probe import capabilities_of, shown_pictures
from engine_server.engine.conversation.read_messages import read_tools, read_turns
from engine_server.engine.conversation.turns import Conversation, ImagePart
from engine_server.engine.conversation.words import described_calls
from engine_server.engine.input.media_marks import MediaMarks
from engine_server.engine.input.pictures import PendingPictures
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.segment_cache import Sharers
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture
from engine_server.requests.prompts import TokensPrompt

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]


def chat_prompts(
    processor: Processor,
    messages: Messages | Sequence[Messages],
    *,
    template: str | None = None,
    tools: Sequence[object] | None = None,
    open_answer: bool = True,
    continue_last: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[TokensPrompt]:
    """Return the prompt of one conversation, or of each of several.

    template: in place of the model's own. open_answer: append the beginning of an answer. continue_last: leave the last
    message open. variables: further ones of the template. Raises InvalidRequestError, which names the message.
    """
    if continue_last and open_answer:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt can't both be true", "continue_final_message"
        )
    for name in variables or ():
        if name in RESERVED_VARIABLES:
            raise InvalidRequestError(
                f"{quote(name)} is set by an argument or the tokenizer and can't be a variable",
                "chat_template_kwargs",
            )
    several = not messages or not isinstance(messages[0], Mapping)
    conversations: Any = enumerate(messages) if several else [(None, messages)]
    definitions, takes_pictures = read_tools(tools), processor.media is not None
    return [
        chat_prompt(
            processor,
            Conversation(
                turns=read_turns(one, "messages" if number is None else f"messages.{number}", takes_pictures),
                open_answer=open_answer,
                continue_last=continue_last,
                variables=variables or {},
                template=template,
            ),
            definitions,
        )
        for number, one in conversations
    ]


def chat_prompt(
    processor: Processor, conversation: Conversation, tools: Sequence[dict[str, Any]]
) -> TokensPrompt:
    """Render a conversation to a prompt by the chat template, and tokenize it."""
    try:
        template = ChatTemplate.chosen(processor.tokenizer, conversation.template, tools)
    except ValueError as error:
        raise InvalidRequestError(
            f"there is no chat template: {shorten(str(error))}", "chat_template"
        ) from None
    capabilities, shown = probed(template.text, json.dumps(template.special_tokens))
    takes_tools = template.takes_tools
    if conversation.template is not None:  # it gets all of the conversation
        capabilities = msgspec.structs.replace(ALL_CAPABILITIES, content=capabilities.content)
        shown, takes_tools = ShownPictures(), True
    write, described = (None, ()) if takes_tools else (described_calls, tools)
    messages, lost, pictures = template_messages(conversation.turns, capabilities, write, described, shown)
    if lost:
        logger.warning(
            "the chat template doesn't print: %s", ", ".join(f"{path} ({kind})" for path, kind in lost)
        )
    if excess := PICTURES._replace(limit=processor.config.max_pictures).exceeded(len(pictures)):
        raise InvalidRequestError(excess, "messages")
    marks = MediaMarks(()) if processor.media is None else processor.media.new_marks()
    try:
        text = template.render(
            marks.value(messages),
            marks.value(template_tools(tools, capabilities)) if tools and takes_tools else None,
            conversation.open_answer,
            marks.value(conversation.variables),
            continues=conversation.continue_last,
        )
    except TemplateRefusedError as error:
        reason = shorten(str(error))
        raise InvalidRequestError(f"the chat template refuses the messages: {reason}", "messages") from None
    return tokenized(processor, text, marks, pictures)


def tokenized(
    processor: Processor, text: str, marks: MediaMarks, pictures: Sequence[ImagePart]
) -> TokensPrompt:
    """Return the prompt of a rendered conversation, to which the template has added the special tokens."""
    media = processor.media
    if media is None:
        token_ids = processor.encode(text, None, add_special_tokens=False, sharers=Sharers())
        return TokensPrompt(prompt_token_ids=token_ids, prompt=text)
    with PendingPictures(media.pictures, [decoded(picture) for picture in pictures], None) as pending:
        marked = processor.encode_marked(text, marks, None, add_special_tokens=False, sharers=Sharers())
        for index, future in pending.futures():
            with naming(pictures[index]):
                future.result()
        whole = media.with_placeholders(marked, pending.known())
    return TokensPrompt(
        prompt_token_ids=whole.token_ids, prompt=marks.restored(text), pictures=whole.pictures
    )


@lru_cache(MAX_TEMPLATES)
def probed(text: str, special_tokens: str) -> tuple[Capabilities, ShownPictures]:
    """Return what a template prints of a history. special_tokens: as JSON."""
    template = ChatTemplate(text, json.loads(special_tokens))
    capabilities = capabilities_of(template)
    return capabilities, shown_pictures(template, capabilities)


def decoded(picture: ImagePart) -> Picture:
    with naming(picture):
        return picture.sent.picture()


@contextmanager
def naming(picture: ImagePart) -> Iterator[None]:
    """Name the part of the messages in an error of its picture."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{picture.path}: {error}", "messages") from None
