"""The run of an answer's plan: events, as they happen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_server.engine.loop.async_stream import Signal
from engine_server.server.generation.choice_reader import ChoiceReader, raise_if_failed
from engine_server.server.generation.events import (
    GenerationEvent,
    GenerationFinished,
    Prompt,
    Resumed,
    TokenCounts,
)
from engine_server.server.generation.prompt_run import PromptRun, start_prompt

if TYPE_CHECKING:
    from engine_server.contract.wire.continuation import Resume
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.output.request_state import TokenSink
    from engine_server.requests.outputs import CompletionOutput, RequestOutput
    from engine_server.server.generation.plan import GenerationPlan


@dataclass(slots=True)
class Tally:
    """The running `TokenCounts` of a generation."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int = 0

    def counts(self) -> TokenCounts:
        return TokenCounts(
            self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens
        )


class Generation:
    """Runs the prompts of a plan at the same time. `aclose` aborts those that still run."""

    def __init__(self, engine: AsyncLLMEngine, plan: GenerationPlan) -> None:
        self._engine = engine
        self._plan = plan
        # None before the start; then those that have not ended.
        self._runs: list[PromptRun] | None = None
        self._searches: list[asyncio.Task[None]] = []
        # Set when any prompt has a result.
        self._changed = Signal()
        self._readers: dict[int, ChoiceReader] = {}
        self._prompts: dict[int, Prompt] = {}
        self.tally = Tally(sum(len(one.prompt["prompt_token_ids"]) for one in plan.prompts))
        # True once the last event was returned.
        self.ended = False

    async def next(self) -> list[Resumed | GenerationEvent]:
        """Wait until something happens, and return the events; none where a result has none yet, or after `wake`.

        The first call queues the prompts, and waits for no result. Raises ApiError for a request that the engine
        refuses or fails.
        """
        if self._runs is None:
            self._runs = []
            await self._start(self._runs)
        else:
            await self._changed.wait()
        return self._take()

    @property
    def only_reader(self) -> ChoiceReader | None:
        """The reader of the only choice; None if there are several, or before its first result."""
        one = len(self._plan.prompts) == 1 and self._plan.request.choices_per_prompt == 1
        return self._readers.get(0) if one else None

    def divert(self, sink: TokenSink) -> None:
        """Let `sink` take the tokens of the only choice in place of results, as `AsyncStream.divert` does."""
        for run in self._runs or ():
            run.divert(sink)

    def wake(self) -> None:
        """End the wait of `next`."""
        self._changed.set()

    async def aclose(self) -> None:
        self.ended = True
        for task in self._searches:
            task.cancel()
        if self._runs:
            await self._engine.abort([run.request_id for run in self._runs])
        if self._searches:
            await asyncio.wait(self._searches)

    async def _start(self, runs: list[PromptRun]) -> None:
        request, prompts = self._plan.request, self._plan.prompts
        for index, prompt in enumerate(prompts):
            request_id = f"{request.engine_id}-{index}" if len(prompts) > 1 else request.engine_id
            run = await start_prompt(self._engine, request, prompt, index, request_id, self._changed)
            runs.append(run)
            if run.search is not None:
                self._searches.append(run.search)

    def _take(self) -> list[Resumed | GenerationEvent]:
        """Return the events of the results that are there."""
        events: list[Resumed | GenerationEvent] = []
        ended = False
        for run in self._runs or ():
            for result in run.take():
                self._read(run, result, events)
                ended |= result.finished
        if ended:
            self._runs = [run for run in self._runs or () if not run.ended]
            if not self._runs:
                self.ended = True
                events.append(GenerationFinished(self.tally.counts()))
        return events

    def _read(self, run: PromptRun, result: RequestOutput, events: list[Resumed | GenerationEvent]) -> None:
        """Add the events of a prompt's next result."""
        request = self._plan.request
        first = run.index * request.choices_per_prompt
        if run.index not in self._prompts:
            self._add_prompt(run, result)
        for output in result.outputs:
            if output.finish_reason is not None:
                raise_if_failed(output)
            choice = first + output.index
            reader = self._readers.get(choice)
            if reader is None:
                reader = self._readers[choice] = self._new_reader(run, choice)
                if request.resume is not None:
                    events.append(self._replay(reader, request.resume, output))
            self.tally.completion_tokens += reader.count(output)
            self.tally.reasoning_tokens += reader.count_reasoning(output.token_ids)
            if delta := reader.read(output, self.tally.counts()):
                events.append(delta)

    def _add_prompt(self, run: PromptRun, result: RequestOutput) -> None:
        text = run.prompt.prompt.get("prompt")
        self._prompts[run.index] = Prompt(text, result.prompt_token_ids, result.prompt_logprobs)
        cached = self._plan.request.context.router.terms.cached_tokens
        if cached is None:
            cached = (self.tally.cached_tokens or 0) + (result.num_cached_tokens or 0)
        self.tally.cached_tokens = cached

    def _new_reader(self, run: PromptRun, choice: int) -> ChoiceReader:
        return ChoiceReader(
            choice,
            run.prompt.parser(choice),
            self._prompts[run.index],
            prompt_only=self._plan.request.prompt_only,
            has_text=run.prompt.params.detokenize,
        )

    def _replay(self, reader: ChoiceReader, resume: Resume, output: CompletionOutput) -> Resumed:
        """Return the part of the answer that the client has already."""
        self.tally.completion_tokens = len(resume.token_ids)
        self.tally.reasoning_tokens = reader.count_reasoning(resume.token_ids)
        return Resumed(
            reader.replay(resume.token_ids, output.resumed_text, self.tally.counts()), resume.events
        )
