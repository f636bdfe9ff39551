"""An engine core without a model, which answers every request with the tokens of a script.

For measurements of the server, and for tests of it that no model's answer matters to. It runs in a process of its own
at a fixed rate where `scripted_server` starts it; tests run it in the server's process too.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.config.start_facts import StartFacts
from engine_server.core.distributed import child_process as child
from engine_server.modeling.device.progress import FILE, ProgressClock
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    FrontEndMessage,
    PromptLogprobsPart,
    Ready,
    RequestStep,
    StepOutputs,
    TokenLogprobsArray,
    Vocabulary,
)
from engine_server.requests.scheduler_stats import SchedulerStats

# Returns the tokens of a request's answer.
Script = Callable[[AddRequest], Sequence[int]]

# The environment's variable with the number of steps per second, each with a token for every request.
RATE = "BENCHMARK_SCRIPTED_RATE"
NUM_BLOCKS = 4096
IDLE_MS = 250


@dataclass(slots=True)
class Answer:
    """A completion in flight. `number`: how many of the answer's tokens have been sent."""

    request_id: str
    index: int
    request: AddRequest
    tokens: Sequence[int]
    number: int


class ScriptedCore:
    """The requests in flight. Each ends after the script's last token, unless its limit comes first.

    A request that ignores the end of the sequence gets the script's tokens again and again.
    """

    def __init__(self, script: Script, eos_token_ids: Sequence[int]) -> None:
        self.script = script
        # The number of tokens after which answers wait; None: they don't.
        self.held_at: int | None = None
        # The most tokens of a step, as accepted drafts make them.
        self.tokens_per_step = 1
        # Of each prompt, as the core reports them.
        self.num_cached = 0
        # Log-probabilities of prompts, to be sent before the step's outputs.
        self._parts: list[PromptLogprobsPart] = []
        self._eos_token_ids = eos_token_ids
        self._answers: dict[str, Answer] = {}

    @property
    def has_work(self) -> bool:
        """True if a request's next token is due."""
        return any(self._continues(answer) for answer in self._answers.values())

    def handle(self, message: FrontEndMessage) -> CallResult | StepOutputs | None:
        """Take a message, and return the reply to it: for aborted requests, the state without them."""
        match message:
            case AddRequest():
                tokens = self.script(message)
                for index, core_id in enumerate(message.request_ids):
                    self._answers[core_id] = Answer(core_id, index, message, tokens, message.num_resumed)
            case AbortRequests():
                for request_id in message.request_ids:
                    self._answers.pop(request_id, None)
                return StepOutputs([], self._stats(0))
            case Call():
                return CallResult(message.call_id, error="the scripted core has no operations")
        return None

    def step(self) -> list[PromptLogprobsPart | StepOutputs]:
        """Give every request its next tokens; return the messages about them."""
        steps = [self._next(answer) for answer in list(self._answers.values()) if self._continues(answer)]
        parts, self._parts = self._parts, []
        return [*parts, StepOutputs(steps, self._stats(len(steps)))]

    def _continues(self, answer: Answer) -> bool:
        return self.held_at is None or answer.number < self.held_at

    def _next(self, answer: Answer) -> RequestStep:
        request, params = answer.request, answer.request.params
        step = RequestStep(answer.request_id, [])
        if answer.number == request.num_resumed:
            step.scheduled, step.num_cached_tokens = time.monotonic(), self.num_cached
            if (count := params.prompt_logprobs) is not None and not answer.index:
                end = request.num_tokens - request.num_resumed
                prompt = [logprobs(token, count) for token in request.token_ids()[1:end]]
                self._parts += PromptLogprobsPart.split(answer.request_id, prompt)
        while len(step.new_token_ids) < self.tokens_per_step and not step.finish_reason:
            self._add_token(step, answer)
        if params.logprobs is not None:
            step.logprobs = [logprobs(token_id, params.logprobs) for token_id in step.new_token_ids]
        if step.finish_reason:
            del self._answers[answer.request_id]
        return step

    def _add_token(self, step: RequestStep, answer: Answer) -> None:
        """Add an answer's next token to its step, and the reason if the answer ends with it."""
        request, tokens, number = answer.request, answer.tokens, answer.number
        params = request.params
        ends = number >= len(tokens) and not params.ignore_eos
        token_id = self._eos_token_ids[0] if ends else tokens[number % len(tokens)]
        step.new_token_ids.append(token_id)
        step.finish_reason, step.stop_reason = params.end(
            token_id, number + 1, request.max_tokens, self._eos_token_ids
        )
        answer.number += 1

    def _stats(self, num_tokens: int) -> SchedulerStats:
        running = len(self._answers)
        return SchedulerStats(
            num_running=running, kv_cache_usage=min(1.0, running / NUM_BLOCKS), num_tokens=num_tokens
        )


def logprobs(token_id: int, count: int) -> TokenLogprobsArray:
    """Return log-probabilities with a token as the likeliest, and those with the lowest other ids after it."""
    others = [other for other in range(count) if other != token_id]
    top = [token_id, *others][:count]
    values = [-0.25 * rank for rank in range(1, count + 1)]
    return TokenLogprobsArray([token_id, *top], [-0.25, *values], [1, *range(1, count + 1)])


def serve(folder: str, fail: object) -> None:
    context = zmq.Context()
    inputs, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set_hwm(0)
    inputs.connect(f"ipc://{folder}/input")
    outputs.connect(f"ipc://{folder}/output")
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(FrontEndMessage)
    msgspec.msgpack.decode(inputs.recv(), type=EngineConfig)
    vocabulary = decoder.decode(inputs.recv())
    assert isinstance(vocabulary, Vocabulary)
    tokens = words(vocabulary)
    core = ScriptedCore(lambda request: tokens, vocabulary.eos_token_ids)
    progress = ProgressClock(Path(folder, FILE))
    progress.tick()
    outputs.send(
        encoder.encode(Ready(StartFacts(NUM_BLOCKS, 0, batch_invariant=False, kernels="", memory={})))
    )
    interval = 1 / float(os.environ[RATE])
    due = time.monotonic()
    while True:
        wait = max(0, int(1000 * (due - time.monotonic()))) if core.has_work else IDLE_MS
        if inputs.poll(wait):
            if returned := core.handle(decoder.decode(inputs.recv())):
                outputs.send(encoder.encode(returned))
            continue
        progress.tick()
        now = time.monotonic()
        if core.has_work and now >= due:
            for message in core.step():
                outputs.send(encoder.encode(message))
            due = max(due + interval, now)


def words(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that are a word with a space before it."""
    return [
        token_id
        for token_id, text in enumerate(vocabulary.tokens)
        if text.startswith(b" ") and text[1:].isalpha()
    ]


if __name__ == "__main__":
    child.run("core", serve)
