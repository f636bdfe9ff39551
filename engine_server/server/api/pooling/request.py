"""The request fields that the APIs of pooling models share."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.tokenizer import Truncation
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api import fields
from engine_server.server.api.chat.input import ChatInput
from engine_server.server.api.content import media_of, refuse_media
from engine_server.server.api.fields import Ignored, Items, only, prompt_list
from engine_server.server.api.generation_request import ApiRequest
from engine_server.server.http.errors import ApiError

EncodingFormat = Literal["float", "base64"]


class PoolingRequest(ApiRequest):
    """The fields that all have. Without a model, the served one is meant."""

    model: str | None = None
    user: Ignored = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: int | None = None
    timeout: float | None = None
    request_id: Annotated[str, AfterValidator(fields.request_id)] | None = None
    # No prompt of a pooling model shares cached blocks with another.
    cache_salt: Ignored = None

    padding: Annotated[Any, only("do_not_pad")] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.truncate_prompt_tokens == 0:
            message = "truncate_prompt_tokens is 0; it takes a positive number, or -1 for the model's context"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="truncate_prompt_tokens")

    def answer_id(self, prefix: str) -> str:
        """Return the answer's id: the prefix and the client's own id, or a random one."""
        return prefix + (self.request_id or uuid.uuid4().hex)

    def truncation(self, context: int) -> Truncation:
        """Return the limits of a prompt. context: the model's, in tokens."""
        longest = context if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens
        return Truncation(longest, self.truncation_side or "right")


def optional_input(value: object) -> list[str] | list[list[int]] | None:
    return None if value is None else prompt_list(value)


class InputRequest(ChatInput, PoolingRequest):
    """A request for vectors of texts, of token ids, or of one conversation."""

    input: Annotated[list[str] | list[list[int]] | None, PlainValidator(optional_input)] = None
    tools: Annotated[Items[dict[str, Any]], Field(max_length=bounds.TOOLS.limit)] | None = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.input is None and self.messages is None:
            raise ApiError(ErrorCode.MISSING_FIELD, "input is missing", param="input")
        if self.input is not None and self.messages is not None:
            raise ApiError(ErrorCode.INVALID_VALUE, "input and messages exclude each other", param="messages")
        if media := media_of(self.turns):
            raise refuse_media(media[0].part, "the model pools")
