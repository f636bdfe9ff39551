"""The request whose conversation is edited as the client asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine_server.contract.base.bounds import TOKENIZED_BYTES, TOKENIZED_TOKENS
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api.create_answer import count_tokens
from engine_server.server.api.messages.context_edits import ThinkingCleared, ToolUsesCleared
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.loaded_model import LoadedModel


class EditedRequest(NamedTuple):
    """A request after the edits of its conversation, and the report of those that were applied."""

    body: MessagesRequest
    # None: the request asks for no edits.
    applied: list[ToolUsesCleared | ThinkingCleared] | None
    # The length of the prompt before the edits; None where no edit clears anything.
    original_tokens: int | None = None


async def edit_context(
    model: LoadedModel, body: MessagesRequest, headers: Mapping[str, str]
) -> EditedRequest:
    """Apply the request's edits in their order. Raises ApiError.

    The result depends on the request, the model's tokenizer and the day on which the answer began, so that any replica
    continues it.
    """
    if body.context_management is None:
        return EditedRequest(body, None)
    applied: list[ToolUsesCleared | ThinkingCleared] = []
    original_tokens = num_tokens = None
    for edit in body.context_management.edits or ():
        edited = edit.apply(body.messages)
        if not edited.cleared:
            continue
        if num_tokens is None:
            check_length(body)
            original_tokens = num_tokens = await count_tokens(model, body, headers, TOKENIZED_TOKENS.limit)
        if not edit.is_triggered(body.messages, num_tokens):
            continue
        candidate = body.with_messages(edited.messages)
        num_left = await count_tokens(model, candidate, headers, TOKENIZED_TOKENS.limit)
        cleared = num_tokens - num_left
        if cleared >= edit.least_cleared_tokens:
            body, num_tokens = candidate, num_left
            applied.append(edit.report(edited.cleared, max(0, cleared)))
    return EditedRequest(body, applied, original_tokens)


def check_length(body: MessagesRequest) -> None:
    """Raise ApiError 400 for a conversation that takes too long to count, as it may be longer than the context."""
    rendered = [body.turns, body.chat_template_kwargs or {}]
    # Pictures are no text: nothing of them is counted.
    if error := TOKENIZED_BYTES.exceeded(len(msgspec.json.encode(rendered, enc_hook=lambda picture: None))):
        raise ApiError(
            ErrorCode.INVALID_VALUE, f"messages with context_management: {error}", param="messages"
        )
