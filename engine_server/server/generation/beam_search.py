"""Beam search, in the form in which sampled choices are reported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from engine_server.engine.input.tokenizer import backend_of
from engine_server.engine.output.token_decoder import TokenDecoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.contract.caller import ReportedCaller
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.requests.outputs import CompletionOutput, RequestOutput
    from engine_server.requests.prompts import TokensPrompt


async def beam_search(
    engine: AsyncLLMEngine,
    prompt: TokensPrompt,
    request_id: str,
    params: BeamSearchParams,
    logprobs: int | None,
    mark_token_ids: Sequence[int],
    lora: LoRARequest | None,
    prompt_adapter: PromptAdapterRequest | None,
    caller: ReportedCaller | None,
) -> RequestOutput:
    """Return the result of a search: the best beams, with the `logprobs` likeliest tokens at each place.

    mark_token_ids: those of SamplingParams, for which a search has no parameter.
    """
    search = engine.beam_search(prompt, request_id, params, lora, prompt_adapter, caller=caller)
    async with aclosing(search) as results:
        result = await anext(results)
    for output in result.outputs:
        limit_logprobs(output, logprobs)
        if mark_token_ids:
            output.text = text_with_marks(await engine.get_tokenizer(), output.token_ids, mark_token_ids)
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
