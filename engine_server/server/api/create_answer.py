"""The path of every request for generated text, whatever its API: check, tokenize, generate, render."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from engine_server.contract.headers import MODEL
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.api.answer_format import with_parser
from engine_server.server.api.answers import AnswerIdentity
from engine_server.server.api.continuation import apply_resume, first_report, resumed_stream
from engine_server.server.api.models import served_model
from engine_server.server.generation.generate import GenerationEvents
from engine_server.server.generation.generation import Generation, refusal
from engine_server.server.generation.render import Renderer, stream_answer, whole_answer
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.parsers.tool_use import AnswerStyle

# Seconds after which a request ends with the tokens so far.
TIMEOUT_HEADER = "x-request-timeout"


class AnswerRequest(Protocol):
    """A checked request for generated text."""

    # The beginning of the answer's id.
    ID_PREFIX: ClassVar[str]
    # The request's field for an engine's parameter, where their names differ.
    ENGINE_FIELDS: ClassVar[Mapping[str, str]]

    @property
    def model(self) -> str: ...

    @property
    def model_extra(self) -> dict[str, Any] | None:
        """The fields that the API doesn't have."""

    @property
    def streams(self) -> bool: ...

    @property
    def engine_fields(self) -> Mapping[str, str]:
        """ENGINE_FIELDS with the field that asks for a grammar."""

    @property
    def own_id(self) -> str | None:
        """The client's own id of the request."""

    @property
    def queue_priority(self) -> int: ...

    @property
    def prompt_only(self) -> bool:
        """True if the answer has the prompt and no new text."""

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return the engine's parameters; the model's `defaults` are for fields that are left out."""

    def beam_search_params(self, defaults: Mapping[str, Any]) -> BeamSearchParams | None:
        """Return the parameters of a beam search; None to sample."""

    async def prompts(self, host: EngineHost, context: int) -> list[TokensPrompt]:
        """Return the prompts as tokens. context: the longest that a prompt may be cut to, with a token after it."""

    @property
    def answer_style(self) -> AnswerStyle | None:
        """The parts that the answer may have besides text; None for plain text."""

    def renderer(self, host: EngineHost, identity: AnswerIdentity) -> Renderer: ...


async def create_answer(host: EngineHost, request: AnswerRequest, headers: Mapping[str, str]) -> Response:
    """Return the answer to a request, whole or as a stream. Raises ApiError and InvalidRequestError."""
    model = served_model(host, request.model, headers)
    resume = resumed_stream(headers, request.model_extra or {}, model.fingerprint)
    try:
        params = request.sampling_params(host.sampling_defaults)
    except InvalidRequestError as error:
        raise refusal(error, request.engine_fields) from None
    params.timeout = deadline(params.timeout, headers)
    beams = request.beam_search_params(host.sampling_defaults)
    prompts = await request.prompts(host, model.context)
    unique = uuid.uuid4().hex
    answer_id, created = request.ID_PREFIX + (request.own_id or unique), int(time.time())
    if resume is not None:
        answer_id, created = resume.id, resume.created
    identity = AnswerIdentity(answer_id, created, model.name, model.fingerprint)
    generation = Generation(
        request_id=identity.id if identity.id.endswith(unique) else f"{identity.id}-{unique}",
        prompts=prompts,
        params=params,
        lora=model.lora,
        prompt_adapter=model.prompt_adapter,
        trace_headers=host.trace_headers(headers),
        fields=request.engine_fields,
        priority=request.queue_priority,
        beams=beams,
        prompt_only=request.prompt_only,
    )
    style = request.answer_style
    if style is not None:
        generation = with_parser(generation, host.answer_format, style, identity.id, request.streams)
    if resume is not None:
        generation = apply_resume(generation, resume, request.streams)
    report = first_report(headers, generation, identity, request.streams)
    renderer = request.renderer(host, identity)
    events = GenerationEvents(host.engine, generation)
    if request.streams:
        answer = stream_answer(events, renderer, host.settings.sse_keep_alive_interval, report)
    else:
        answer = await whole_answer(events, renderer)
    answer.headers[MODEL] = model.fingerprint
    return answer


def deadline(timeout: float | None, headers: Mapping[str, str]) -> float | None:
    """Return the shorter of the request's own timeout and its header's, in seconds. Raises ApiError."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return timeout
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ApiError(400, f"X-Request-Timeout is {text[:50]!r}; it takes a number of seconds over 0")
    return seconds if timeout is None else min(timeout, seconds)
