"""Streamed answers of every API from an engine that a test plays, by a client's connection that a test reads."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
from server.conversation.recorded_answers import TOOLS, marks_of, our_layout, tokenizer_with
from small_tokenizers import EOS, vocabulary_of
from tokenizers import Tokenizer

from engine_server.contract.wire.continuation import Resume, StreamTerms, TokenReport
from engine_server.engine.loop.async_stream import AsyncStream
from engine_server.engine.output.output_processor import OutputProcessor
from engine_server.engine.output.request_state import RequestState
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.messages import AddRequest, RequestStep
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.submission import Origin, Submission
from engine_server.requests.token_bytes import pack
from engine_server.server.api.chat.renderer import ChatRenderer, Opening
from engine_server.server.api.completion_renderer import CompletionRenderer
from engine_server.server.api.messages.renderer import MessagesRenderer
from engine_server.server.api.openai_answer import AnswerOptions
from engine_server.server.api.responses.body import RequestEcho
from engine_server.server.api.responses.renderer import ResponseRenderer
from engine_server.server.conversation.plan import plan_conversation
from engine_server.server.generation.answer_parser import plain_text
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.answer_stream import AnswerStream
from engine_server.server.generation.generation import Generation
from engine_server.server.generation.plan import AnswerIdentity, AnswerRequest, GenerationPlan, PromptPlan
from engine_server.server.generation.render import Renderer
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse
from engine_server.server.http.errors import as_api_error
from engine_server.telemetry.stats import IterationStats

APIS = ("chat", "completions", "messages", "responses")
FORMAT = "hermes"
INSIDE = AnswerStart("<|im_start|>assistant\n<think>\n")
PROMPT = [40, 41, 42]
SEED = 7
IDENTITY = AnswerIdentity("answer-1", 1_700_000_000, "model", "fingerprint")
ECHO = RequestEcho(
    instructions=None, max_output_tokens=None, metadata={}, parallel_tool_calls=True, reasoning={}, temperature=1,
    text={}, tool_choice="auto", tools=[], top_logprobs=0, top_p=1, truncation="disabled", user=None,
)  # fmt: skip
# Turns of the event loop in which a stream has taken its results.
TURNS = 10


@dataclass(frozen=True)
class Asked:
    """What a client asks for. marked: the model's delimiters are tokens."""

    api: str = "chat"
    reports: bool = True
    options: AnswerOptions = field(default_factory=AnswerOptions)
    marked: bool = True
    tools: bool = True
    reasons: bool = False
    shows_reasoning: bool = True
    params: SamplingParams = field(default_factory=SamplingParams)


class Line:
    """A client's connection: the pieces that it was sent, and how many of them the short way wrote."""

    def __init__(self) -> None:
        self.is_free = True
        self.pieces: list[bytes] = []
        self.num_short = 0
        # Raised by the next write.
        self.failure: Exception | None = None

    def write_now(self, data: bytes) -> None:
        self.write(data)
        self.num_short += 1

    def write(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.pieces.append(data)


class Engine:
    """An engine whose steps a test makes, of one request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._processor = OutputProcessor(tokenizer, [EOS])
        self._stream: AsyncStream
        self.state: RequestState
        self.stats: list[IterationStats] = []

    async def submit(self, submission: Submission) -> AsyncStream:
        prompt: Any = submission.prompt
        resumed = prompt.get("resume_token_ids", [])
        params = submission.params
        assert isinstance(params, SamplingParams)
        token_ids = [*prompt["prompt_token_ids"], *resumed]
        message = AddRequest([], pack(token_ids), params, 1000, 0.0, num_resumed=len(resumed))
        prepared = self._processor.prepare(submission, message, token_ids, None)
        self.state = prepared.state
        assert self._processor.add(self.state)
        self._stream = AsyncStream(params.output_kind, self.state)
        return self._stream

    async def abort(self, request_ids: Iterable[str]) -> None:
        self._put(*self._processor.abort(request_ids, IterationStats()))

    def step(self, step: RequestStep) -> None:
        step.request_id = self.state.completions[0].core_id
        if not self.stats:
            step.scheduled = time.monotonic()
        self.stats.append(IterationStats())
        self._put(*self._processor.process([step], self.stats[-1]))

    def die(self, error: Exception) -> None:
        self._stream.fail(error)

    def _put(self, outputs: Sequence[Any], aborts: object) -> None:
        for output in outputs:
            self._stream.put(output)


class PlayedStream:
    """A stream, whose pieces are those of `line`. The short way is open to it from the start, or not at all."""

    def __init__(self, asked: Asked, short: bool, resume: Resume | None = None) -> None:
        self.engine = Engine(tokenizer(asked.marked))
        self.line = Line()
        engine: Any = self.engine
        plan = plan_of(asked, resume)
        self._generation = Generation(engine, plan)
        report = TokenReport(SEED, id=IDENTITY.id, created=IDENTITY.created) if asked.reports else None
        renderer = renderer_of(asked)
        if resume is not None:
            renderer.resume(resume)
        self._stream = AnswerStream(self._generation, renderer, report, reports_usage=False)
        self._task = asyncio.create_task(self._read(short))

    async def settle(self) -> None:
        """Let the stream take its results."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def step(self, step: RequestStep) -> None:
        await self.settle()
        self.engine.step(step)
        await self.settle()

    async def wake(self) -> None:
        self._stream.wake()
        await self.settle()

    async def disconnect(self) -> None:
        self._task.cancel()
        await self.settle()

    @property
    def counts(self) -> object:
        return self._generation.tally

    async def _read(self, short: bool) -> None:
        async with aclosing(self._stream) as stream:
            try:
                while not stream.ended:
                    begun = bool(self.line.pieces)
                    if data := await stream.next(self.line if short and begun else None):
                        self.line.write(data)
            except Exception as error:
                self.line.pieces.append(stream.error(as_api_error(error)))
                return
        self.line.pieces.append(stream.end)


@cache
def tokenizer(marked: bool) -> Tokenizer:
    found: Tokenizer = tokenizer_with(tuple(marks_of(FORMAT)) if marked else ()).backend_tokenizer
    return found


@cache
def token_bytes(marked: bool) -> Sequence[bytes]:
    return vocabulary_of(tokenizer(marked)).tokens


def plan_of(asked: Asked, resume: Resume | None) -> GenerationPlan:
    use = ToolUse(TOOLS) if asked.tools else None
    style = AnswerStyle(use, include_reasoning=asked.shows_reasoning)
    params = msgspec.structs.replace(asked.params, output_kind=RequestOutputKind.DELTA, seed=SEED)
    prompt: Any = {"prompt_token_ids": PROMPT}
    if resume is not None:
        prompt["resume_token_ids"] = resume.token_ids
    context: Any = SimpleNamespace(
        router=SimpleNamespace(terms=StreamTerms(cached_tokens=0)), origin=Origin()
    )
    source: Any = None
    request = AnswerRequest(
        identity=IDENTITY, engine_id=IDENTITY.id, source=source, params=params, streams=True, context=context,
        fields={}, resume=resume,
    )  # fmt: skip
    if asked.api == "completions":
        return GenerationPlan(request, (PromptPlan(prompt, params, plain_text),))
    layout = our_layout(FORMAT, asked.marked)
    start = INSIDE if asked.reasons else AnswerStart()
    plan = plan_conversation(
        layout, start, style, params, IDENTITY.id, whole=False, token_bytes=token_bytes(asked.marked)
    )
    assert plan.new_reader is not None
    return GenerationPlan(request, (PromptPlan(prompt, plan.params, plan.new_reader, plan.new_scope),))


def renderer_of(asked: Asked) -> Renderer:
    texts = TokenTexts(tokenizer(asked.marked))
    match asked.api:
        case "chat":
            return ChatRenderer(
                IDENTITY, asked.options, [Opening("assistant", "")], choices_per_prompt=1, top_logprobs=0,
                prompt_text=False, names_tool=False, texts=texts,
            )  # fmt: skip
        case "completions":
            logprobs = asked.params.logprobs is not None
            return CompletionRenderer(
                IDENTITY, asked.options, echo=False, logprobs=logprobs, skips_special=True, texts=texts
            )
        case "messages":
            shows = asked.shows_reasoning
            return MessagesRenderer(
                IDENTITY.id, IDENTITY.model, 1000, show_thinking=shows, report_cached=False
            )
        case _:
            return ResponseRenderer(
                IDENTITY.id, IDENTITY.created, IDENTITY.model, ECHO, top_logprobs=0, targets={}, texts=texts
            )
