"""Continuation of streams between replicas: what the router asks of an engine beside the client's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.contract import headers
from engine_server.contract.continuation import ROUTER_FIELD, Resume, RouterFields, TokenReport
from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.server.generation.plan import AnswerRequest


def resumed_stream(
    received: Mapping[str, str], unknown_fields: Mapping[str, Any], fingerprint: str
) -> Resume | None:
    """Return the state of the stream that a request continues; None for a request that begins one.

    unknown_fields: the fields of the body that the API doesn't have. Raises ApiError 409 for a stream of another model.
    """
    if received.get(headers.RESUME) != "1":
        return None
    try:
        resume = msgspec.convert(unknown_fields.get(ROUTER_FIELD), RouterFields).resume
    except msgspec.ValidationError as error:
        raise ApiError(
            400, f"{ROUTER_FIELD}: {error}", param=ROUTER_FIELD, code=ErrorCode.INVALID_VALUE
        ) from None
    if resume.model != fingerprint:
        message = "the stream was begun by another model, dtype or kind of device"
        raise ApiError(
            409, message, param=ROUTER_FIELD, code=ErrorCode.MODEL_MISMATCH, fingerprint=fingerprint
        )
    return resume


def refuse_continuation() -> ApiError:
    """Return the error for a request that continues what is no stream of one sampled choice."""
    message = "only a stream of one choice can be continued"
    return ApiError(400, message, param=ROUTER_FIELD, code=ErrorCode.INVALID_VALUE)


def first_report(request: AnswerRequest, prompts: Sequence[TokensPrompt]) -> TokenReport | None:
    """Return the beginning of the first report of a stream with one prompt; None if its tokens are not reported."""
    if request.report is None:
        return None
    (prompt,) = prompts
    return msgspec.structs.replace(request.report, prompt_tokens=len(prompt["prompt_token_ids"]))
