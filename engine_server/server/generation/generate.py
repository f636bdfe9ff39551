"""Events of a generation, as they happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from engine_server.contract.errors import ErrorCode
from engine_server.requests.outputs import CompletionOutput
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
from engine_server.server.generation.generation import Generation, Results
from engine_server.server.generation.work import check_work
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.continuation import Resume
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.logprobs import SampleLogprobs
    from engine_server.requests.outputs import RequestOutput


class GenerationEvents:
    """An asynchronous iterator of a generation's events, as lists of those that happen together.

    The first iteration queues the prompts; `aclose` aborts what is still running. Raises ApiError for a request that
    the engine refuses or fails.
    """

    def __init__(self, engine: AsyncLLMEngine, generation: Generation) -> None:
        self._engine = engine
        self._generation = generation
        self._results = Results(engine, generation)
        self._choices: dict[int, ChoiceReader] = {}
        self._prompts: dict[int, Prompt] = {}
        self._usage = Usage(sum(len(prompt["prompt_token_ids"]) for prompt in generation.prompts), 0)
        self._started = self._finished = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Resumed | GenerationEvent]:
        if self._finished:
            raise StopAsyncIteration
        if not self._started:
            self._started = True
            generation = self._generation
            width = max(generation.choices_per_prompt, generation.params.num_children)
            check_work(self._engine, generation.prompts, generation.params, width)
            await self._results.start()
        events: list[Resumed | GenerationEvent] = []
        while not events:
            for index, result in await self._results.get():
                self._read(index, result, events)
            if self._results.ended:
                self._finished = True
                events.append(GenerationFinished(self._usage))
        return events

    async def aclose(self) -> None:
        self._finished = True
        await self._results.close()

    def _read(self, index: int, result: RequestOutput, events: list[Resumed | GenerationEvent]) -> None:
        """Add the events of a prompt's next result."""
        first = index * self._generation.choices_per_prompt
        if index not in self._prompts:
            self._add_prompt(index, result)
        for output in result.outputs:
            if output.finish_reason is not None:
                raise_if_failed(output)
            reader = self._choices.get(first + output.index)
            if reader is None:
                reader = self._choices[first + output.index] = ChoiceReader(
                    first + output.index, self._generation, self._prompts[index]
                )
                if self._generation.resume is not None:
                    events.append(self._replay(reader, self._generation.resume, output))
            before = self._usage
            self._usage = Usage(
                before.prompt_tokens,
                before.completion_tokens + reader.count(output),
                before.cached_tokens,
                before.reasoning_tokens + reader.count_reasoning(output.token_ids),
            )
            if delta := reader.read(output, self._usage):
                events.append(delta)

    def _add_prompt(self, index: int, result: RequestOutput) -> None:
        text = self._generation.prompts[index].get("prompt")
        self._prompts[index] = Prompt(text, result.prompt_token_ids, result.prompt_logprobs)
        cached = (self._usage.cached_tokens or 0) + (result.num_cached_tokens or 0)
        self._usage = replace(self._usage, cached_tokens=cached)

    def _replay(self, reader: ChoiceReader, resume: Resume, output: CompletionOutput) -> Resumed:
        """Return the part of the answer that the client has already."""
        self._usage = replace(
            self._usage,
            completion_tokens=len(resume.token_ids),
            reasoning_tokens=reader.count_reasoning(resume.token_ids),
        )
        return Resumed(reader.replay(resume.token_ids, output.resumed_text, self._usage), resume.events)


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

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return how many of the next tokens belong to the reasoning."""
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


def raise_if_failed(output: CompletionOutput) -> None:
    """Raise ApiError for an output that ended without an answer."""
    if output.finish_reason == "error":
        raise ApiError(500, f"the request failed: {output.stop_reason}", code=ErrorCode.REQUEST_FAILED)
    if output.finish_reason == "abort":
        message = "the request was aborted by the server"
        raise ApiError(503, message, code=ErrorCode.ABORTED, retry_after=1)
