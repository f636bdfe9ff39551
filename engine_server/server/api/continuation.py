"""Continuation of streams between replicas: what the router asks of an engine beside the client's request."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.contract import headers
from engine_server.contract.continuation import ROUTER_FIELD, Resume, RouterFields, TokenReport
from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.server.api.answers import AnswerIdentity
    from engine_server.server.generation.generation import Generation


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


def can_continue(generation: Generation, streams: bool) -> bool:
    """Return true for an answer that another engine can continue: a stream of one sampled choice."""
    params = generation.params
    several = len(generation.prompts) > 1 or params.num_children > 1
    return streams and not several and generation.beams is None and not generation.prompt_only


def apply_resume(generation: Generation, resume: Resume, streams: bool) -> Generation:
    """Return the generation that continues a stream. Raises ApiError 400 for one that can't be continued."""
    if not can_continue(generation, streams):
        message = "only a stream of one choice can be continued"
        raise ApiError(400, message, param=ROUTER_FIELD, code=ErrorCode.INVALID_VALUE)
    generation.params.seed = resume.seed
    prompt: TokensPrompt = {**generation.prompts[0], "resume_token_ids": resume.token_ids}
    return dataclasses.replace(generation, prompts=[prompt], resume=resume)


def first_report(
    received: Mapping[str, str], generation: Generation, identity: AnswerIdentity, streams: bool
) -> TokenReport | None:
    """Return what the first report of a stream's tokens has besides tokens; None for an answer without reports."""
    if received.get(headers.REPORT_TOKENS) != "1" or not can_continue(generation, streams):
        return None
    params = generation.params
    if params.seed is None:
        params.seed = secrets.randbits(63)
    return TokenReport(params.seed, id=identity.id, created=identity.created)
