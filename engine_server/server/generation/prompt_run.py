"""The run of one prompt in the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine_server.engine.loop.async_stream import AsyncStream, Signal
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind
from engine_server.requests.submission import Submission
from engine_server.server.generation.beam_search import beam_search
from engine_server.server.http.errors import refusal

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.output.request_state import TokenSink
    from engine_server.server.generation.plan import AnswerRequest, PromptPlan


class PromptRun:
    """A prompt that was queued, and its results; the first one has the prompt's log-probabilities, if they are awaited.

    changed: set with each result, and with an error.
    """

    def __init__(
        self, index: int, prompt: PromptPlan, request_id: str, stream: AsyncStream, changed: Signal
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.request_id = request_id
        self.ended = False
        # The task of a beam search.
        self.search: asyncio.Task[None] | None = None
        stream.changed = changed
        self._stream = stream
        self._awaits_logprobs = prompt.params.prompt_logprobs is not None
        # Results of choices that are ahead of the one with the prompt's log-probabilities.
        self._held: list[RequestOutput] = []

    def divert(self, sink: TokenSink) -> None:
        """Let `sink` take tokens in place of results, as `AsyncStream.divert` does."""
        self._stream.divert(sink)

    def take(self) -> list[RequestOutput]:
        """Return the new results. Raises the engine's error."""
        result = self._stream.take()
        if result is None:
            return []
        assert isinstance(result, RequestOutput)
        self.ended = result.finished
        if not self._awaits_logprobs:
            return [result]
        self._held.append(result)
        if result.prompt_logprobs is None and not result.finished:
            return []
        self._awaits_logprobs = False
        self._held[0].prompt_logprobs = result.prompt_logprobs
        return self._held


async def start_prompt(
    engine: AsyncLLMEngine,
    request: AnswerRequest,
    prompt: PromptPlan,
    index: int,
    request_id: str,
    changed: Signal,
) -> PromptRun:
    """Queue a prompt. Raises ApiError for one that the engine refuses."""
    if request.beams is not None:
        return start_search(engine, request, prompt, index, request_id, changed)
    try:
        stream = await engine.submit(
            Submission(
                request_id,
                prompt.prompt,
                prompt.params,
                origin=request.context.origin,
                stop_scope=prompt.stop_scope,
            )
        )
    except InvalidRequestError as error:
        raise refusal(error, request.fields) from None
    return PromptRun(index, prompt, request_id, stream, changed)


def start_search(
    engine: AsyncLLMEngine,
    request: AnswerRequest,
    prompt: PromptPlan,
    index: int,
    request_id: str,
    changed: Signal,
) -> PromptRun:
    """Start a beam search, whose one result is the only one of its run."""
    stream = AsyncStream(RequestOutputKind.FINAL_ONLY)
    run = PromptRun(index, prompt, request_id, stream, changed)

    async def search() -> None:
        try:
            stream.put(await beam_search(engine, request, prompt, request_id))
        except InvalidRequestError as error:
            stream.fail(refusal(error, request.fields))
        except Exception as error:
            stream.fail(error)

    run.search = asyncio.create_task(search())
    return run
