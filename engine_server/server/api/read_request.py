"""The check of a request for generated text, whatever its API, before its prompts are tokenized."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.sampling_params import SamplingParams
from engine_server.server.api.content import MEDIA_TYPES, MediaUse, refuse_media
from engine_server.server.api.continuation import check_settings, refuse_continuation, resumed_stream
from engine_server.server.api.ignored import IgnoredPart, ignored_types
from engine_server.server.api.schemas import RequestSchemas, request_schemas
from engine_server.server.generation.plan import AnswerIdentity, AnswerRequest
from engine_server.server.generation.prompts import PromptSource
from engine_server.server.http.errors import ApiError, refusal

if TYPE_CHECKING:
    from engine_server.contract.wire.continuation import Resume
    from engine_server.server.api.generation_request import GenerationRequest
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.generation.request_context import RequestContext, ServedModel
    from engine_server.server.generation.tool_use import AnswerStyle
    from engine_server.server.loaded_model import LoadedModel

# Of each reason why a form of calls is not used.
REFUSAL_CHARACTERS = 200


class ReadRequest(NamedTuple):
    """A request that was checked."""

    answer: AnswerRequest
    # What is left out of the prompt, or has no effect on the answer.
    ignored: list[IgnoredPart]


def read_request(model: LoadedModel, body: GenerationRequest, context: RequestContext) -> ReadRequest:
    """Return all that is known of an answer without tokens. Raises ApiError and InvalidRequestError."""
    served, router = context.served, context.router
    resume = resumed_stream(router, body.model_extra or {}, served.fingerprint)
    check_settings(router.terms, model.stream_settings, served.fingerprint)
    beams = body.beam_search_params(model.sampling_defaults)
    style = body.answer_style
    if style is not None and model.layout is not None:
        check_tools(model.layout, style, searches=beams is not None)
    check_reasoning_budget(model.layout, body)
    schemas = request_schemas(body, model.layout, model.settings.strict_schemas)
    source = prompt_source(model, body, served.context)
    check_pictures(source, beams is not None, served)
    ignored = ignored_parts(model, body, source, schemas)
    ignored_types.warn(part.type for part in ignored)
    # Another engine can continue a stream of one sampled choice.
    continuable = body.streams and len(source) == 1 and beams is None and not body.prompt_only
    reports = continuable and router.reports_tokens
    params = sampling_params(model, body, context.timeout, resume, draws_seed=reports)
    params = msgspec.structs.replace(params, structured_outputs=schemas.form)
    continuable = continuable and params.num_children == 1
    if resume is not None and not continuable:
        raise refuse_continuation()
    unique = uuid.uuid4().hex
    identity = AnswerIdentity(
        id=resume.id if resume else body.ID_PREFIX + (body.request_id or unique),
        created=resume.created if resume else int(time.time()),
        model=served.name,
        fingerprint=served.fingerprint,
    )
    report = None
    if router.reports_tokens and continuable:
        assert params.seed is not None
        report = TokenReport(params.seed, id=identity.id, created=identity.created)
    answer = AnswerRequest(
        identity=identity,
        engine_id=identity.id if identity.id.endswith(unique) else f"{identity.id}-{unique}",
        source=source,
        params=params,
        beams=beams,
        style=schemas.style,
        streams=body.streams,
        prompt_only=body.prompt_only,
        context=context,
        fields=body.engine_fields,
        resume=resume,
        report=report,
        reports_usage=router.reports_tokens and body.streams and not continuable,
    )
    return ReadRequest(answer, ignored)


def sampling_params(
    model: LoadedModel,
    body: GenerationRequest,
    timeout: float | None,
    resume: Resume | None,
    draws_seed: bool,
) -> SamplingParams:
    """Return the engine's parameters of all prompts. Raises ApiError.

    timeout: that of the body or of its header. draws_seed: the seed is known before the first token, so that another
    engine can continue the stream.
    """
    try:
        parameters = body.sampling_parameters(model.sampling_defaults)
        if timeout is not None:
            parameters["timeout"] = timeout
        if resume is not None:
            parameters["seed"] = resume.seed
        elif draws_seed and parameters.get("seed") is None:
            parameters["seed"] = secrets.randbits(63)
        return SamplingParams(**parameters)
    except InvalidRequestError as error:
        raise refusal(error, body.engine_fields) from None


def prompt_source(model: LoadedModel, body: GenerationRequest, context: int) -> PromptSource:
    """Return the prompts of a request, with the tools as the model's chat template takes them. Raises ApiError 400.

    context: the most tokens of prompt and answer.
    """
    refuse_ignored(model, body.ignored_tools, body.media)
    return body.source(model.settings, model.answer_layout, context)


def ignored_parts(
    model: LoadedModel, body: GenerationRequest, source: PromptSource, schemas: RequestSchemas
) -> list[IgnoredPart]:
    """Return what is left out of the prompt, or has no effect on the answer."""
    hints = () if limits_reasoning(model.layout) else body.reasoning_hints
    switches = () if model.answer_layout.switches_reasoning else body.reasoning_switches
    lost = [IgnoredPart(*part) for part in source.lost]
    return [*body.ignored, *hints, *switches, *ignored_form(body), *lost, *schemas.relaxed]


def ignored_form(body: GenerationRequest) -> list[IgnoredPart]:
    """Return the form of the answer's text, if a call is demanded in its place."""
    use = body.answer_style.tools if body.answer_style else None
    if use is None or use.choice != "required" or body.grammar is None:
        return []
    return [IgnoredPart(body.engine_fields["structured_outputs"], "demanded_call")]


def refuse_ignored(model: LoadedModel, tools: Sequence[IgnoredPart], media: Sequence[MediaUse]) -> None:
    """Raise ApiError 400 for a tool or a part of a message that the settings don't leave out."""
    if model.settings.strict_tools and tools:
        message = f"{tools[0]} is a tool of a type that is not supported"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param=tools[0].field)
    policy = model.settings.unsupported_media
    for one in media:
        known = one.part.type in MEDIA_TYPES
        if policy == "refuse" or (one.newest and (policy is None or not known)):
            raise refuse_media(one.part, model.refuses_pictures)


def check_pictures(source: PromptSource, searches: bool, served: ServedModel) -> None:
    """Raise ApiError 400 for pictures beside what takes none.

    searches: the answer is found by a beam search.
    """
    if not source.pictures:
        return
    path = source.pictures[0][0]
    if searches:
        message = f"use_beam_search: a beam search takes no pictures, and {path} is one"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="use_beam_search")
    if served.prompt_adapter is not None:
        message = f"model: a prompt adapter takes no pictures, and {path} is one"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="model")


def limits_reasoning(layout: Layout | None) -> bool:
    return layout is not None and layout.reasoning is not None


def check_reasoning_budget(layout: Layout | None, body: GenerationRequest) -> None:
    """Raise ApiError 400 for a limit of the reasoning of a model whose reasoning is not known."""
    if body.thinking_token_budget in (None, -1) or limits_reasoning(layout):
        return
    message = (
        "thinking_token_budget: the tokens that end this model's reasoning are not known; start the server with "
        "--response-template"
    )
    raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="thinking_token_budget")


def check_tools(layout: Layout, style: AnswerStyle, searches: bool) -> None:
    """Raise ApiError 400 for tools, or a demand on their calls, that the model's format can't express.

    searches: the answer is found by a beam search, which takes no grammar.
    """
    use = style.tools
    if use is None:
        return
    if not layout.calls_tools:
        message = (
            "the form of this model's tool calls is not known; start the server with --response-template"
        )
        tried = "; ".join(reason[:REFUSAL_CHARACTERS] for reason in layout.refusals)
        raise ApiError(
            ErrorCode.UNSUPPORTED_VALUE, f"{message} (tried: {tried})" if tried else message, param="tools"
        )
    if use.choice == "required" and layout.call is None:
        message = "a tool call can't be demanded in the form of this model's calls; use the tool_choice auto"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="tool_choice")
    if searches and layout.call is not None and use.validated:
        message = "a beam search takes no tool_choice but auto and none, and no strict tools"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="use_beam_search")
