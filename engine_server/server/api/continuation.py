"""Continuation of streams between replicas: what the router asks of an engine beside the client's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.contract.wire.continuation import (
    ROUTER_FIELD,
    Resume,
    RouterFields,
    StreamTerms,
    TokenReport,
    prompt_hash,
)
from engine_server.contract.wire.errors import ErrorCode
from engine_server.contract.wire.router_head import RouterHead
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.generation.plan import AnswerRequest
    from engine_server.server.generation.prompts import PreparedPrompt


def resumed_stream(router: RouterHead, unknown_fields: Mapping[str, Any], fingerprint: str) -> Resume | None:
    """Return the state of the stream that a request continues; None for a request that begins one.

    unknown_fields: the fields of the body that the API doesn't have. Raises ApiError 409 for a stream of another model.
    """
    if not router.resumes:
        return None
    try:
        resume = msgspec.convert(unknown_fields.get(ROUTER_FIELD), RouterFields).resume
    except msgspec.ValidationError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, f"{ROUTER_FIELD}: {error}", param=ROUTER_FIELD) from None
    if resume.model != fingerprint:
        raise mismatch("the stream was begun by another model, dtype or kind of device", fingerprint)
    return resume


def check_settings(terms: StreamTerms, settings: str, fingerprint: str) -> None:
    """Raise ApiError 409 for a stream that was begun with other settings.

    fingerprint: that of the model that answers.
    """
    if terms.settings not in (None, settings):
        raise mismatch("the stream was begun with other defaults, parsers or rendering", fingerprint)


def check_prompt(request: AnswerRequest, prompts: Sequence[PreparedPrompt]) -> None:
    """Raise ApiError 409 for a stream whose prompt had other tokens or pictures at the engine that began it."""
    if request.context.router.terms.prompt_hash is None:
        return
    (prompt,) = prompts
    if hash_of(prompt) != request.context.router.terms.prompt_hash:
        raise mismatch("the prompt has other tokens or pictures here", request.identity.fingerprint)


def mismatch(message: str, fingerprint: str) -> ApiError:
    """Return the error for a stream that this engine can't continue. fingerprint: that of the model that answers."""
    return ApiError(ErrorCode.MODEL_MISMATCH, message, param=ROUTER_FIELD, fingerprint=fingerprint)


def refuse_continuation() -> ApiError:
    """Return the error for a request that continues what is no stream of one sampled choice."""
    message = "only a stream of one choice can be continued"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=ROUTER_FIELD)


def first_report(request: AnswerRequest, prompts: Sequence[PreparedPrompt]) -> TokenReport | None:
    """Return the beginning of the first report of a stream with one prompt; None if its tokens are not reported."""
    if request.report is None:
        return None
    (prompt,) = prompts
    length = len(prompt.tokens["prompt_token_ids"])
    return msgspec.structs.replace(request.report, prompt_tokens=length, prompt_hash=hash_of(prompt))


def hash_of(prompt: PreparedPrompt) -> str:
    """Return what two engines compare of a stream's prompt."""
    digests = [picture.digest for picture in prompt.tokens.get("pictures", ())]
    return prompt_hash(prompt.tokens["prompt_token_ids"], digests)
