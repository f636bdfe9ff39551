"""The prompts of one HTTP request, and the engine's results for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from engine_server.engine.loop.async_stream import AsyncStream, Signal
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind
from engine_server.server.generation.answer_parser import ParserFactory, plain_text
from engine_server.server.generation.beam_search import beam_search
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.continuation import Resume
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import TraceHeaders


@dataclass(frozen=True, slots=True)
class Generation:
    """The prompts of one HTTP request; prompt p has the choices p * n to p * n + n - 1."""

    # Unique among the requests in flight.
    request_id: str
    prompts: list[TokensPrompt]
    params: SamplingParams
    # The adapter that answers; both None: the model itself.
    lora: LoRARequest | None = None
    prompt_adapter: PromptAdapterRequest | None = None
    trace_headers: TraceHeaders = None
    # The client's field for an engine's parameter, where their names differ.
    fields: Mapping[str, str] = field(default_factory=dict)
    parser: ParserFactory = plain_text
    # Lower priorities run first.
    priority: int = 0
    # Search in place of sampling; `params` then says only what is reported.
    beams: BeamSearchParams | None = None
    # Report the prompts and nothing else.
    prompt_only: bool = False
    # The state of the stream that this generation continues; only for a single choice.
    resume: Resume | None = None

    @property
    def choices_per_prompt(self) -> int:
        return self.params.n if self.beams is None else self.beams.beam_width


class Results:
    """The results of all prompts, which run concurrently. `close` ends those that still run."""

    def __init__(self, engine: AsyncLLMEngine, generation: Generation) -> None:
        self._engine = engine
        self._generation = generation
        self._prompts: list[PromptResults] = []
        self._searches: list[asyncio.Task[None]] = []
        # Set when any prompt has a result.
        self._changed = Signal()

    async def start(self) -> None:
        """Queue all prompts. Raises ApiError for a request that the engine refuses."""
        generation = self._generation
        several = len(generation.prompts) > 1
        for index in range(len(generation.prompts)):
            request_id = f"{generation.request_id}-{index}" if several else generation.request_id
            stream = await (self._sample if generation.beams is None else self._search)(index, request_id)
            stream.changed = self._changed
            awaits_logprobs = generation.params.prompt_logprobs is not None
            self._prompts.append(PromptResults(index, request_id, stream, awaits_logprobs))

    async def get(self) -> list[tuple[int, RequestOutput]]:
        """Wait for results, and return each with its prompt's index."""
        while True:
            results: list[tuple[int, RequestOutput]] = []
            ended = False
            for prompt in self._prompts:
                for result in prompt.take():
                    results.append((prompt.index, result))
                    ended |= result.finished
            if ended:
                self._prompts = [prompt for prompt in self._prompts if not prompt.ended]
            if results:
                return results
            await self._changed.wait()

    @property
    def ended(self) -> bool:
        """True once the last results of all prompts were returned."""
        return not self._prompts

    async def close(self) -> None:
        for task in self._searches:
            task.cancel()
        if self._prompts:
            await self._engine.abort([prompt.request_id for prompt in self._prompts])
        if self._searches:
            await asyncio.wait(self._searches)

    async def _sample(self, index: int, request_id: str) -> AsyncStream:
        generation = self._generation
        try:
            return await self._engine.add_request(
                request_id,
                generation.prompts[index],
                generation.params,
                lora_request=generation.lora,
                prompt_adapter_request=generation.prompt_adapter,
                trace_headers=generation.trace_headers,
                priority=generation.priority,
            )
        except InvalidRequestError as error:
            raise refusal(error, generation.fields) from None

    async def _search(self, index: int, request_id: str) -> AsyncStream:
        """Start a beam search, whose one result is the stream's only output."""
        stream = AsyncStream(RequestOutputKind.FINAL_ONLY)

        async def run() -> None:
            generation = self._generation
            assert generation.beams is not None
            try:
                stream.put(
                    await beam_search(
                        self._engine,
                        generation.prompts[index],
                        request_id,
                        generation.beams,
                        generation.params.logprobs,
                        generation.lora,
                        generation.prompt_adapter,
                    )
                )
            except InvalidRequestError as error:
                stream.fail(refusal(error, generation.fields))
            except Exception as error:
                stream.fail(error)

        self._searches.append(asyncio.create_task(run()))
        return stream


class PromptResults:
    """The results of one prompt; the first one has the prompt's log-probabilities, if they are awaited."""

    def __init__(self, index: int, request_id: str, stream: AsyncStream, awaits_logprobs: bool) -> None:
        self.index = index
        self.request_id = request_id
        self.ended = False
        self._stream = stream
        self._awaits_logprobs = awaits_logprobs
        # Results of choices that are ahead of the one with the prompt's log-probabilities.
        self._held: list[RequestOutput] = []

    def take(self) -> list[RequestOutput]:
        """Return the new results. Raises the engine's error."""
        result = cast(RequestOutput | None, self._stream.take())
        if result is None:
            return []
        self.ended = result.finished
        if not self._awaits_logprobs:
            return [result]
        self._held.append(result)
        if result.prompt_logprobs is None and not result.finished:
            return []
        self._awaits_logprobs = False
        self._held[0].prompt_logprobs = result.prompt_logprobs
        return self._held


def refusal(error: InvalidRequestError, fields: Mapping[str, str]) -> ApiError:
    """Return the engine's error as one of the client's field."""
    param = fields.get(error.parameter or "", error.parameter)
    message = str(error) if param == error.parameter else f"{param}: {error}"
    return ApiError(400, message, param=param)
