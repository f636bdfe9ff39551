"""The plan of an answer: all that the engine and the answer's parser need, decided before the engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine_server.contract.wire.continuation import Resume, TokenReport
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.requests.stop_scope import StopScopeFactory
    from engine_server.server.generation.answer_parser import ParserFactory
    from engine_server.server.generation.prompts import PromptSource
    from engine_server.server.generation.request_context import RequestContext
    from engine_server.server.generation.tool_use import AnswerStyle


class AnswerIdentity(NamedTuple):
    """The fields that identify one answer."""

    id: str
    # Seconds since the epoch.
    created: int
    model: str
    # Of the model that answers.
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A checked request for generated text, whatever its API: all that is known before its prompts are tokens."""

    identity: AnswerIdentity
    # Unique among the requests in flight.
    engine_id: str
    source: PromptSource
    # Those of every prompt, with the form of its text in place of the grammar of the answer.
    params: SamplingParams
    # Search in place of sampling; `params` then says only what is reported.
    beams: BeamSearchParams | None = None
    # The parts that the answer may have besides text; None for plain text.
    style: AnswerStyle | None = None
    streams: bool = False
    # Report the prompts and nothing else.
    prompt_only: bool = False
    context: RequestContext
    # The client's field for an engine's parameter, where their names differ.
    fields: Mapping[str, str]
    # The state of the stream that this answer continues; only for a single choice.
    resume: Resume | None = None
    # The answer's id, creation time and seed, if its tokens are reported to the router.
    report: TokenReport | None = None
    # The router wants to know the usage of a stream whose tokens are not reported.
    reports_usage: bool = False

    @property
    def choices_per_prompt(self) -> int:
        return self.params.n if self.beams is None else self.beams.beam_width


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """One prompt of a request, and how it is answered."""

    prompt: TokensPrompt
    params: SamplingParams
    # Makes the parser of a choice.
    parser: ParserFactory
    # Makes the scope of the stop strings of a choice; None: all of its text.
    stop_scope: StopScopeFactory | None = None


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The answer of one request; prompt p has the choices p * n to p * n + n - 1."""

    request: AnswerRequest
    prompts: tuple[PromptPlan, ...]
