"""The plan of an answer to a request whose prompts are tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine_server.server.conversation.plan import plan_conversation
from engine_server.server.generation.answer_parser import plain_text
from engine_server.server.generation.plan import AnswerRequest, GenerationPlan, PromptPlan

if TYPE_CHECKING:
    from engine_server.server.generation.prompts import PreparedPrompt
    from engine_server.server.loaded_model import LoadedModel


def plan_answer(
    model: LoadedModel, request: AnswerRequest, prompts: Sequence[PreparedPrompt]
) -> GenerationPlan:
    """Return how each prompt is answered. A function of its arguments alone, without I/O."""
    return GenerationPlan(request, tuple(plan_prompt(model, request, prompt) for prompt in prompts))


def plan_prompt(model: LoadedModel, request: AnswerRequest, prompt: PreparedPrompt) -> PromptPlan:
    tokens = prompt.tokens
    if request.resume is not None:
        tokens = {**tokens, "resume_token_ids": request.resume.token_ids}
    if model.layout is None or request.style is None:
        return PromptPlan(tokens, request.params, plain_text)
    plan = plan_conversation(
        model.layout,
        prompt.start,
        request.style,
        request.params,
        request.identity.id,
        whole=not request.streams,
        token_bytes=model.token_bytes,
    )
    return PromptPlan(tokens, plan.params, plan.new_reader or plain_text, plan.new_scope)
