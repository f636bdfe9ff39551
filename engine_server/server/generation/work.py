"""Bounds on the work of a generation, checked before the engine starts any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.base.bounds import Bound
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.server.generation.plan import GenerationPlan


def check_work(engine: AsyncLLMEngine, plan: GenerationPlan) -> None:
    """Raise ApiError 400 for more work than is allowed, QueueFullError if the choices don't fit the queue."""
    model, request, prompts = engine.model_config, plan.request, plan.prompts
    params = request.params
    # Choices of each prompt that run at the same time.
    width = max(request.choices_per_prompt, params.num_children)
    choices = len(prompts) * width
    check(bounds.CHOICES, choices, "n")
    num_tokens = sum(len(one.prompt["prompt_token_ids"]) for one in prompts)
    if request.beams is not None:
        check_beams(num_tokens, request.beams.beam_width)
    max_tokens = min(params.max_tokens or model.max_model_len, model.max_model_len)
    output_logprobs = choices * max_tokens * reported(params.logprobs, model.vocab_size)
    check(bounds.OUTPUT_LOGPROBS, output_logprobs, "max_tokens")
    if params.prompt_logprobs is not None:
        prompt_logprobs = num_tokens * reported(params.prompt_logprobs, model.vocab_size)
        check(bounds.PROMPT_LOGPROBS, prompt_logprobs, "prompt_logprobs")
    lists = (params.stop_token_ids, params.allowed_token_ids, params.bad_words, params.logit_bias)
    check(bounds.TOKEN_RULES, choices * sum(len(entries or ()) for entries in lists), "n")
    grammars = [one.params.structured_outputs for one in prompts]
    check(bounds.GRAMMAR_BYTES, width * sum(grammar.size for grammar in grammars if grammar), "n")
    engine.check_room(choices)


def check_beams(num_tokens: int, width: int) -> None:
    """Raise ApiError 400 for beams whose tokens take too long to send to the core, which each step does."""
    if error := bounds.BEAM_TOKENS.exceeded(num_tokens * width):
        message = f"a beam search of width {width} over {num_tokens:,} prompt tokens is too large: {error}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="use_beam_search")


def reported(logprobs: int | None, vocab_size: int) -> int:
    """Return the number of log-probabilities that are reported at a position, at most; -1 is the whole vocabulary."""
    return 1 + (vocab_size if logprobs == -1 else logprobs or 0)


def check(bound: Bound, amount: int, param: str) -> None:
    if error := bound.exceeded(amount):
        raise ApiError(ErrorCode.INVALID_VALUE, error, param=param)
