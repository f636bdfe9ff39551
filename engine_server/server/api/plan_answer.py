"""The plan of an answer to a request whose prompts are tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine_server.server.generation.answer_parser import plain_text
from engine_server.server.generation.plan import AnswerRequest, GenerationPlan, PromptPlan
from engine_server.server.parsers.tool_grammar import call_grammar

if TYPE_CHECKING:
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.generation.tool_use import AnswerStyle
    from engine_server.server.loaded_model import LoadedModel
    from engine_server.server.parsers.model_format import ModelFormat


def plan_answer(
    model: LoadedModel, request: AnswerRequest, prompts: Sequence[TokensPrompt]
) -> GenerationPlan:
    """Return how each prompt is answered. A function of its arguments alone, without I/O."""
    return GenerationPlan(request, tuple(plan_prompt(model.format, request, prompt) for prompt in prompts))


def plan_prompt(format: ModelFormat | None, request: AnswerRequest, prompt: TokensPrompt) -> PromptPlan:
    if request.resume is not None:
        prompt = {**prompt, "resume_token_ids": request.resume.token_ids}
    if format is None or request.style is None:
        return PromptPlan(prompt, request.params, plain_text)
    style, text = request.style, prompt.get("prompt") or ""
    answer = format.answer(
        request.identity.id,
        text,
        style.callable,
        one_call=style.tools is not None and not style.tools.parallel,
        whole=not request.streams,
        include_reasoning=style.include_reasoning,
    )
    parser = plain_text if answer is None else answer.parser
    params = with_reasoning_budget(format, style, with_grammar(format, request, text), text)
    return PromptPlan(prompt, params, parser)


def with_reasoning_budget(
    format: ModelFormat, style: AnswerStyle, params: SamplingParams, prompt: str
) -> SamplingParams:
    """Return the parameters with the limit of this prompt's reasoning."""
    if style.reasoning_budget is None:
        return params
    reasoning = format.limited_reasoning(prompt, style.reasoning_budget)
    return params if reasoning is None else msgspec.structs.replace(params, reasoning=reasoning)


def with_grammar(format: ModelFormat, request: AnswerRequest, prompt: str) -> SamplingParams:
    """Return the request's parameters with the grammar of this prompt's answer, which begins after its reasoning."""
    params, use = request.params, request.style.tools if request.style else None
    if use is not None and use.validated and format.call is not None:
        grammar = call_grammar(format.call, use, format.reasoning_end_after(prompt))
    elif params.structured_outputs is not None:
        grammar = msgspec.structs.replace(
            params.structured_outputs, starts_after=format.reasoning_end_after(prompt)
        )
    else:
        return params
    return msgspec.structs.replace(params, structured_outputs=grammar)
