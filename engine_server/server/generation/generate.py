"""Run the prompts of one HTTP request in the engine and merge their outputs into one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.generation.answer_parser import ParserFactory, plain_text
from engine_server.server.generation.events import (
    ChoiceDelta,
    Finish,
    GenerationEvent,
    GenerationFinished,
    Usage,
)
from engine_server.server.generation.work import check_work
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.outputs import CompletionOutput
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import TraceHeaders


@dataclass(frozen=True, slots=True)
class Generation:
    """The prompts of one HTTP request; prompt p has the choices p * n to p * n + n - 1."""

    request_id: str
    prompts: list[TokensPrompt]
    params: SamplingParams
    trace_headers: TraceHeaders
    # The client's field for an engine's parameter, where their names differ.
    fields: Mapping[str, str] = field(default_factory=dict)
    parser: ParserFactory = plain_text


async def generate(engine: AsyncLLMEngine, generation: Generation) -> AsyncGenerator[GenerationEvent, None]:
    """Yield the events of all prompts as they happen. Closing the generator aborts what is still running.

    Raises ApiError for a request that the engine refuses or fails.
    """
    check_work(engine, generation.prompts, generation.params)
    choices: dict[int, ChoiceReader] = {}
    usage = Usage(sum(len(prompt["prompt_token_ids"]) for prompt in generation.prompts), 0)
    several = len(generation.prompts) > 1
    outputs = merge_prompts(engine, generation) if several else run_prompt(engine, generation, 0)
    async with aclosing(outputs):
        async for choice, output in outputs:
            reader = choices.get(choice)
            if reader is None:
                reader = choices[choice] = ChoiceReader(choice, generation.parser)
            usage = usage._replace(completion_tokens=usage.completion_tokens + len(output.token_ids))
            if delta := reader.read(output, usage):
                yield delta
    yield GenerationFinished(usage)


class ChoiceReader:
    """Turns the outputs of one choice into events."""

    def __init__(self, choice: int, parser: ParserFactory) -> None:
        self._choice = choice
        self._parser = parser(choice)
        # Tokens of outputs without an event.
        self._token_ids: list[int] = []

    def read(self, output: CompletionOutput, usage: Usage) -> ChoiceDelta | None:
        """Return the event for the choice's next output; None if there is nothing to report yet."""
        parts = self._parser.feed(output.text)
        finish = None
        if output.finish_reason:
            finish = Finish(output.finish_reason, output.stop_reason)
            parts = parts + self._parser.end()
        self._token_ids += output.token_ids
        if not parts and not output.logprobs and finish is None:
            return None
        token_ids, self._token_ids = self._token_ids, []
        return ChoiceDelta(self._choice, parts, token_ids, output.logprobs, finish, usage)


async def run_prompt(
    engine: AsyncLLMEngine, generation: Generation, index: int
) -> AsyncGenerator[tuple[int, CompletionOutput], None]:
    """Yield the outputs of the prompt at `index`, each with its choice."""
    params, request_id = generation.params, generation.request_id
    if len(generation.prompts) > 1:
        request_id = f"{request_id}-{index}"
    results = engine.generate(
        generation.prompts[index], params, request_id, trace_headers=generation.trace_headers
    )
    async with aclosing(results):
        try:
            async for result in results:
                for output in result.outputs:
                    raise_if_failed(output)
                    yield index * params.n + output.index, output
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
) -> AsyncGenerator[tuple[int, CompletionOutput], None]:
    """Yield the outputs of all prompts, which run concurrently; the first failure ends all."""
    merged: asyncio.Queue[tuple[int, CompletionOutput] | Exception | None] = asyncio.Queue()

    async def forward(index: int) -> None:
        try:
            async with aclosing(run_prompt(engine, generation, index)) as outputs:
                async for output in outputs:
                    merged.put_nowait(output)
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
                case output:
                    yield output
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
