"""Run the prompts of one HTTP request in the engine and merge their outputs into one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import CompletionOutput
from engine_server.server.generation.answer_parser import ParserFactory, plain_text
from engine_server.server.generation.beam_search import beam_search
from engine_server.server.generation.events import (
    ChoiceDelta,
    Finish,
    GenerationEvent,
    GenerationFinished,
    Part,
    Prompt,
    Resumed,
    Usage,
)
from engine_server.server.generation.work import check_work
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.continuation import Resume
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.requests.logprobs import SampleLogprobs
    from engine_server.requests.outputs import RequestOutput
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


async def generate(
    engine: AsyncLLMEngine, generation: Generation
) -> AsyncGenerator[Resumed | GenerationEvent, None]:
    """Yield the events of all prompts as they happen. Closing the generator aborts what is still running.

    Raises ApiError for a request that the engine refuses or fails.
    """
    width = generation.choices_per_prompt
    params = generation.params
    check_work(engine, generation.prompts, params, max(width, params.num_children))
    choices: dict[int, ChoiceReader] = {}
    prompts: dict[int, Prompt] = {}
    prompt_tokens = sum(len(prompt["prompt_token_ids"]) for prompt in generation.prompts)
    usage = Usage(prompt_tokens, 0)
    resume, several = generation.resume, len(generation.prompts) > 1
    results = merge_prompts(engine, generation) if several else run_prompt(engine, generation, 0)
    async with aclosing(results):
        async for index, result in results:
            if index not in prompts:
                prompts[index] = Prompt(
                    generation.prompts[index].get("prompt"), result.prompt_token_ids, result.prompt_logprobs
                )
                cached = (usage.cached_tokens or 0) + (result.num_cached_tokens or 0)
                usage = usage._replace(cached_tokens=cached)
            for output in result.outputs:
                raise_if_failed(output)
                choice = index * width + output.index
                reader = choices.get(choice)
                if reader is None:
                    reader = choices[choice] = ChoiceReader(choice, generation, prompts[index])
                    if resume is not None:
                        usage = usage._replace(
                            completion_tokens=len(resume.token_ids),
                            reasoning_tokens=reader.count_reasoning(resume.token_ids),
                        )
                        yield Resumed(
                            reader.replay(resume.token_ids, output.resumed_text, usage), resume.events
                        )
                usage = Usage(
                    prompt_tokens,
                    usage.completion_tokens + reader.count(output),
                    usage.cached_tokens,
                    usage.reasoning_tokens + reader.count_reasoning(output.token_ids),
                )
                if delta := reader.read(output, usage):
                    yield delta
    yield GenerationFinished(usage)


class ChoiceReader:
    """Turns the outputs of one choice into events."""

    def __init__(self, choice: int, generation: Generation, prompt: Prompt) -> None:
        self._choice = choice
        self._parser = generation.parser(choice)
        self._prompt_only = generation.prompt_only
        self._has_text = generation.params.detokenize
        # None once it is reported.
        self._prompt: Prompt | None = prompt
        # Tokens of outputs without an event.
        self._token_ids: list[int] = []

    def count(self, output: CompletionOutput) -> int:
        """Return how many tokens an output adds to the completion."""
        return 0 if self._prompt_only else len(output.token_ids)

    def count_reasoning(self, token_ids: list[int]) -> int:
        """Return how many of the choice's next tokens belong to the reasoning."""
        return 0 if self._prompt_only else self._parser.count_reasoning(token_ids)

    def replay(self, token_ids: list[int], texts: list[str], usage: Usage) -> list[ChoiceDelta]:
        """Return the events of resumed tokens, of which each made a text visible; at least one event."""
        outputs = [
            CompletionOutput(0, text, [token_id]) for token_id, text in zip(token_ids, texts, strict=True)
        ]
        deltas = [delta for output in outputs if (delta := self.read(output, usage))]
        if self._token_ids or not deltas:
            deltas.append(self._delta([], None, None, usage))
        return deltas

    def read(self, output: CompletionOutput, usage: Usage) -> ChoiceDelta | None:
        """Return the event for the choice's next output; None if there is nothing to report yet."""
        finish = Finish(output.finish_reason, output.stop_reason) if output.finish_reason else None
        if self._prompt_only:
            return self._delta([], None, finish, usage)
        parts = self._parser.feed(output.text)
        if finish is not None:
            parts = parts + self._parser.end()
        self._token_ids += output.token_ids
        if self._has_text and not parts and not output.logprobs and finish is None:
            return None
        return self._delta(parts, output.logprobs, finish, usage)

    def _delta(
        self, parts: list[Part], logprobs: SampleLogprobs | None, finish: Finish | None, usage: Usage
    ) -> ChoiceDelta:
        token_ids, self._token_ids = self._token_ids, []
        prompt, self._prompt = self._prompt, None
        return ChoiceDelta(self._choice, parts, token_ids, logprobs, finish, usage, prompt)


async def run_prompt(
    engine: AsyncLLMEngine, generation: Generation, index: int
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield the results of the prompt at `index`; the first has the prompt's log-probabilities, if requested."""
    params, request_id, prompt = generation.params, generation.request_id, generation.prompts[index]
    if len(generation.prompts) > 1:
        request_id = f"{request_id}-{index}"
    if generation.beams is not None:
        results = beam_search(engine, prompt, request_id, generation.beams, params.logprobs)
    else:
        results = engine.generate(
            prompt,
            params,
            request_id,
            trace_headers=generation.trace_headers,
            priority=generation.priority,
        )
    awaits_prompt = params.prompt_logprobs is not None
    held: list[RequestOutput] = []
    async with aclosing(results):
        try:
            async for result in results:
                if awaits_prompt:  # choices after the first may be ahead of it
                    held.append(result)
                    if result.prompt_logprobs is None and not result.finished:
                        continue
                    awaits_prompt = False
                    held[0].prompt_logprobs = result.prompt_logprobs
                    for earlier in held:
                        yield index, earlier
                else:
                    yield index, result
        except InvalidRequestError as error:
            raise refusal(error, generation.fields) from None


def refusal(error: InvalidRequestError, fields: Mapping[str, str]) -> ApiError:
    """Return the engine's error as one of the client's field."""
    param = fields.get(error.parameter or "", error.parameter)
    message = str(error) if param == error.parameter else f"{param}: {error}"
    return ApiError(400, message, param=param)


def raise_if_failed(output: CompletionOutput) -> None:
    """Raise ApiError for an output that ended without an answer."""
    if output.finish_reason == "error":
        raise ApiError(500, f"the request failed: {output.stop_reason}", code=ErrorCode.REQUEST_FAILED)
    if output.finish_reason == "abort":
        message = "the request was aborted by the server"
        raise ApiError(503, message, code=ErrorCode.ABORTED, retry_after=1)


async def merge_prompts(
    engine: AsyncLLMEngine, generation: Generation
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield the results of all prompts, which run concurrently; the first failure ends all."""
    merged: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def forward(index: int) -> None:
        try:
            async with aclosing(run_prompt(engine, generation, index)) as results:
                async for result in results:
                    merged.put_nowait(result)
        except Exception as error:
            merged.put_nowait(error)
        else:
            merged.put_nowait(None)

    tasks = [asyncio.create_task(forward(index)) for index in range(len(generation.prompts))]
    running = len(tasks)
    try:
        while running:
            match await merged.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case result:
                    yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
