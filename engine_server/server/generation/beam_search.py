"""Beam search, in the form in which sampled choices are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine_server.engine.input.tokenizer import backend_of
from engine_server.engine.output.token_decoder import TokenDecoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.outputs import CompletionOutput, RequestOutput
    from engine_server.server.generation.plan import AnswerRequest, PromptPlan


async def beam_search(
    engine: AsyncLLMEngine, request: AnswerRequest, prompt: PromptPlan, request_id: str
) -> RequestOutput:
    """Return the result of a search: the best beams, each with the likeliest tokens at each place.

    Of the prompt's parameters it takes those that say what is reported, and the timeout.
    """
    assert request.beams is not None
    params = prompt.params
    result = await engine.search(
        request_id, prompt.prompt, request.beams, request.context.origin, params.timeout
    )
    for output in result.outputs:
        limit_logprobs(output, params.logprobs)
        if params.mark_token_ids:
            output.text = text_with_marks(
                await engine.get_tokenizer(), output.token_ids, params.mark_token_ids
            )
    return result


def text_with_marks(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], mark_token_ids: Sequence[int]
) -> str:
    """Return the text of tokens, in which marks are characters."""
    decoder = TokenDecoder(backend_of(tokenizer), (), skip_special_tokens=True, mark_token_ids=mark_token_ids)
    return "".join(map(decoder.decode, token_ids)) + decoder.flush()


def limit_logprobs(output: CompletionOutput, count: int | None) -> None:
    """Reduce a beam's log-probabilities to its own token, which comes first, and the `count` likeliest."""
    if count is None or output.logprobs is None:
        output.logprobs = None
        return
    output.logprobs = [
        {token_id: entry[token_id]}
        | {other: one for other, one in entry.items() if one.rank is not None and one.rank <= count}
        for token_id, entry in zip(output.token_ids, output.logprobs, strict=False)
    ]
