"""The path of every request for generated text, whatever its API: check, tokenize, plan, generate, render."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from engine_server.contract.wire.engine_report import Fingerprint
from engine_server.server.api.context import request_context
from engine_server.server.api.continuation import check_prompt, first_report, resumed_stream
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.api.ignored import HEADER, header_value
from engine_server.server.api.plan_answer import plan_answer
from engine_server.server.api.read_request import prompt_source, read_request
from engine_server.server.api.unusable_schemas import unusable_schemas, without_schemas
from engine_server.server.generation.answer_stream import AnswerStream
from engine_server.server.generation.generation import Generation
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.generation.prompts import tokenize
from engine_server.server.generation.render import Renderer, whole_answer
from engine_server.server.generation.work import check_work
from engine_server.server.http.event_stream import EventStream

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.loaded_model import LoadedModel

Body = TypeVar("Body", bound=GenerationRequest)


async def create_answer(
    model: LoadedModel,
    body: Body,
    headers: Mapping[str, str],
    new_renderer: Callable[[LoadedModel, Body, AnswerIdentity], Renderer],
) -> Response:
    """Return the answer to a request, whole or as a stream. Raises ApiError and InvalidRequestError.

    new_renderer: makes the renderer of the API.
    """
    context = request_context(model, body, headers)
    request, ignored = read_request(model, body, context)
    prompts = await tokenize(model.engine, request.source, context.origin.caller, request.identity.created)
    check_prompt(request, prompts)
    plan = plan_answer(model, request, prompts)
    check_work(model.engine, plan)
    if unusable := await unusable_schemas(model, body, plan):
        request = without_schemas(request, unusable)
        plan = plan_answer(model, request, prompts)
        ignored += unusable
    generation = Generation(model.engine, plan)
    renderer = new_renderer(model, body, request.identity)
    if request.resume is not None:
        renderer.resume(request.resume)
    answer: Response
    if request.streams:
        report = first_report(request, prompts)
        stream = AnswerStream(generation, renderer, report, reports_usage=request.reports_usage)
        answer = EventStream(stream, model.settings.sse_keep_alive_interval)
    else:
        answer = await whole_answer(generation, renderer)
    answer.headers[Fingerprint.NAME] = context.served.fingerprint
    if ignored:
        answer.headers[HEADER] = header_value(ignored)
    return answer


async def count_tokens(
    model: LoadedModel, body: GenerationRequest, headers: Mapping[str, str], most_tokens: int | None = None
) -> int:
    """Return the number of tokens of a request's prompts. Raises ApiError.

    most_tokens: count up to so many of a prompt that can't fit the context too, and before the request's cuts.
    """
    context = request_context(model, body, headers)
    source = prompt_source(model, body, context.served.context)
    if most_tokens is not None:
        source = replace(source, most_tokens=most_tokens, cuts=())
    resume = resumed_stream(context.router, body.model_extra or {}, context.served.fingerprint)
    created = resume.created if resume else None
    prompts = await tokenize(model.engine, source, context.origin.caller, created)
    return sum(len(prompt.tokens["prompt_token_ids"]) for prompt in prompts)
