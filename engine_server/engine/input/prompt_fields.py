"""A caller's prompt as checked fields of plain types."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_server.requests import validation as valid
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import RawSpan, RawTensor
from engine_server.requests.pictures import PromptPicture
from engine_server.requests.prompts import EncodedText

# The dtypes of embeddings, as torch names them.
EMBEDDING_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(slots=True)
class PromptFields:
    """The fields of one prompt. Either `token_ids` or `text` is set; `token_ids` decides where both are."""

    text: str | None = None
    # Not yet compared with the vocabulary.
    token_ids: list[int] | None = None
    token_type_ids: list[int] | None = None
    # Of all tokens; `token_ids` are zeros then.
    embeds: RawSpan | None = None
    # In their order.
    pictures: list[PromptPicture] = field(default_factory=list)
    resume_token_ids: list[int] = field(default_factory=list)
    cache_salt: str | None = None


def parse_prompt(prompt: object, embeds_size: int | None) -> PromptFields:
    """Return the fields of a prompt in any of the forms of PromptType. Raises InvalidRequestError.

    embeds_size: hidden size of prompt_embeds; None if the engine takes none.
    """
    if isinstance(prompt, str):
        return PromptFields(text=valid.text("prompt", prompt))
    if isinstance(prompt, list | tuple):
        return PromptFields(token_ids=_token_ids("prompt", prompt))
    if not isinstance(prompt, Mapping):
        raise InvalidRequestError(
            f"the prompt is a {type(prompt).__name__}; it takes text, a list of token ids, or a mapping with prompt "
            "or prompt_token_ids",
            "prompt",
        )
    fields = PromptFields()
    if prompt.get("prompt") is not None:
        fields.text = valid.text("prompt", prompt["prompt"])
    if prompt.get("prompt_token_ids") is not None:
        fields.token_ids = _token_ids("prompt_token_ids", prompt["prompt_token_ids"])
    if prompt.get("token_type_ids") is not None:
        fields.token_type_ids = _token_ids("token_type_ids", prompt["token_type_ids"])
    if prompt.get("pictures"):
        fields.pictures = _pictures(prompt["pictures"], fields.token_ids)
    if prompt.get("resume_token_ids") is not None:
        fields.resume_token_ids = _token_ids("resume_token_ids", prompt["resume_token_ids"])
    if prompt.get("cache_salt") is not None:
        fields.cache_salt = valid.text("cache_salt", prompt["cache_salt"])
    if prompt.get("prompt_embeds") is not None:
        fields.embeds = _embeds(prompt["prompt_embeds"], embeds_size)
        fields.token_ids = [0] * fields.embeds.rows.shape[0]  # placeholders
    if fields.token_ids is None and fields.text is None:
        raise InvalidRequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
    return fields


def _token_ids(name: str, value: object) -> list[int]:
    if not isinstance(value, list | tuple):
        valid.refuse_type(name, value, "list")
    if isinstance(value, EncodedText) or set(map(type, value)) <= {int}:
        return list(value)
    return [valid.integer(name, item) for item in value]


def _pictures(value: object, token_ids: list[int] | None) -> list[PromptPicture]:
    if token_ids is None:
        raise InvalidRequestError("pictures belong to a prompt of token ids", "pictures")
    if not isinstance(value, list) or not all(isinstance(item, PromptPicture) for item in value):
        raise InvalidRequestError("pictures takes a list of PromptPicture", "pictures")
    return value


def _embeds(embeds: Any, size: int | None) -> RawSpan:
    import torch  # already imported by a caller who has a tensor

    if size is None:
        raise InvalidRequestError("prompt_embeds needs an engine with enable_prompt_embeds", "prompt_embeds")
    expected = f"prompt_embeds takes a tensor of floats [tokens, {size}]"
    if (
        not isinstance(embeds, torch.Tensor)
        or str(embeds.dtype).removeprefix("torch.") not in EMBEDDING_DTYPES
    ):
        raise InvalidRequestError(expected, "prompt_embeds")
    if embeds.layout != torch.strided or embeds.is_meta or embeds.shape[1:] != (size,):
        raise InvalidRequestError(f"{expected}, dense and with data", "prompt_embeds")
    rows = RawTensor.of(embeds.resolve_neg())
    digest = hashlib.sha256(f"{rows.dtype} {rows.shape} ".encode())
    digest.update(rows.data)
    return RawSpan(0, rows, digest.hexdigest())
