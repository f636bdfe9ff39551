"""Requests in flight of an asynchronous engine, and the streams of their outputs."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial

from engine_server.engine.front_end import FrontEnd
from engine_server.engine.loop.admission_queue import AdmissionQueue
from engine_server.engine.loop.async_stream import AsyncStream
from engine_server.engine.loop.core_process import CoreProcess
from engine_server.engine.loop.stall_monitor import StallMonitor
from engine_server.engine.loop.turns import Turns
from engine_server.engine.output.output_processor import PreparedRequest
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    PictureWanted,
    PromptLogprobsPart,
    RequestStep,
    StepOutputs,
)
from engine_server.requests.outputs import Output
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.requests.submission import Submission

logger = logging.getLogger(__name__)

# Maximum number of characters of a prompt that are processed on the event loop, in about 10 ms.
MAX_INLINE = 20_000
# Tokens that are checked in the time in which a character is tokenized.
TOKENS_PER_CHARACTER = 8
# The cost of tokenizing a word apart from its length, in characters of a text that take the same time.
WORD_OVERHEAD = 100


class RequestStreams:
    """The requests in flight and the streams of their outputs. Used on one event loop."""

    def __init__(self, front_end: FrontEnd, core: CoreProcess, log_requests: bool) -> None:
        self.queue = AdmissionQueue(core.send, self._expire)
        self._front_end = front_end
        self._core = core
        self._log_requests = log_requests
        # By the caller's id.
        self._streams: dict[str, AsyncStream] = {}
        self._monitor = StallMonitor()
        # A single thread: a tokenizer blocks a thread that changes its settings while others use it.
        self._thread = Turns(1, "prepare")
        self._num_preparing = 0

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, request_id: str) -> AsyncStream | None:
        return self._streams.get(request_id)

    async def prepare(self, submission: Submission) -> PreparedRequest:
        """Check and tokenize a request, and try its grammar.

        Raises InvalidRequestError, QueueFullError, ShareUsedError.
        """
        self._front_end.check(submission)
        prepared = await self._tokenize(submission)
        if trial := self._front_end.try_grammar(prepared, submission.origin.caller):
            self._front_end.set_grammar(prepared, await asyncio.wrap_future(trial))
        return prepared

    async def _tokenize(self, submission: Submission) -> PreparedRequest:
        """Prepare a request, in a thread if it is long, where senders take turns."""
        size, is_text = work_size(submission)
        if size <= MAX_INLINE and not (is_text and self._num_preparing):
            return self._front_end.prepare(submission)
        self._num_preparing += 1
        try:
            return await self._thread.run(partial(self._front_end.prepare, submission), size)
        finally:
            self._num_preparing -= 1

    def add(self, prepared: PreparedRequest) -> AsyncStream:
        """Send a request to the core; return the stream of its outputs."""
        message = self._front_end.add(prepared)
        state = prepared.state
        stream = self._streams[state.request_id] = AsyncStream(state.params.output_kind, state)
        if message is not None:
            if self._log_requests:
                logger.info(
                    "request %s (%s in the core): %d prompt tokens",
                    state.request_id, ", ".join(message.request_ids), message.num_tokens,
                )  # fmt: skip
            self.queue.put(state.request_id, message)
        else:
            self.abort(
                [state.request_id]
            )  # returns the last output, since the tokens that the request resumes already end it
        return stream

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests immediately, each with a last output. Unknown ids are ignored."""
        known = [request_id for request_id in request_ids if request_id in self._streams]
        if not known:
            return
        outputs, aborts = self._front_end.abort(known)
        for request_id in known:
            self.queue.withdraw(request_id)
        self._put(outputs, aborts)

    def abort_all(self) -> None:
        self.abort(list(self._streams))

    def process(self, message: StepOutputs) -> None:
        """Put the outputs of a step into their streams."""
        self._process(message.steps, message.stats)

    def add_prompt_logprobs(self, part: PromptLogprobsPart) -> None:
        """Add log-probabilities to those of their prompt."""
        self._put(*self._front_end.add_prompt_logprobs(part))

    def send_inputs(self, wanted: PictureWanted) -> None:
        """Send the encoder's inputs for a picture to the core, once they are there."""
        answer = self._front_end.encoder_inputs(wanted)
        if answer is not None:
            loop = asyncio.get_running_loop()
            answer.add_done_callback(lambda done: loop.call_soon_threadsafe(self._core.send, done.result()))

    def fail(self, error: EngineDeadError) -> None:
        """Raise `error` in every stream, and drop them."""
        self._monitor.stop()
        self._thread.close()
        streams, self._streams = self._streams, {}
        for request_id, stream in streams.items():
            self.queue.withdraw(request_id)
            stream.fail(error)

    async def wait_for_sent(self) -> None:
        """Wait for the end of the requests that have been sent to the core."""
        for stream in [stream for name, stream in self._streams.items() if name not in self.queue]:
            await stream.ended.wait()

    async def wait_for_all(self) -> None:
        """Wait until no request is in flight."""
        while self._streams:
            await next(iter(self._streams.values())).ended.wait()

    def _expire(self, message: AddRequest) -> None:
        """End a request whose deadline has passed before the core had it, as the core does."""
        self._process(
            [RequestStep(core_id, [], finish_reason="timeout") for core_id in message.request_ids], None
        )

    def _process(self, steps: list[RequestStep], scheduler_stats: SchedulerStats | None) -> None:
        self._put(*self._front_end.process(steps, scheduler_stats, self._monitor.take()))

    def _put(self, outputs: list[Output], aborts: list[str]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                if output.finished:
                    del self._streams[output.request_id]
                stream.put(output)
        if aborts:
            self._core.send(AbortRequests(aborts))


def work_size(submission: Submission) -> tuple[int, bool]:
    """Return the characters to process, and True if there is text to tokenize. Wrong types have size 0."""
    bad_words = getattr(submission.params, "bad_words", None)
    if isinstance(bad_words, list) and bad_words:
        words = sum(len(word) + WORD_OVERHEAD for word in bad_words if isinstance(word, str))
        return prompt_size(submission.prompt)[0] + words, True
    return prompt_size(submission.prompt)


def prompt_size(prompt: object) -> tuple[int, bool]:
    """Return a prompt's size, and True if it is text that must be tokenized. Wrong types have size 0."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
    if isinstance(token_ids, list):
        return len(token_ids) // TOKENS_PER_CHARACTER, False
    return (len(text), True) if isinstance(text, str) else (0, False)
