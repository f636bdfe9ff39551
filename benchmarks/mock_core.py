"""An engine core without a model, which gives every request a token at a fixed rate, for measurements of the server.

`mock_server` starts it in place of the engine's own.
"""

import os
import time
from pathlib import Path

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed import child_process as child
from engine_server.modeling.progress import FILE, ProgressClock
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    FrontEndMessage,
    Ready,
    RequestStep,
    StepOutputs,
    Vocabulary,
)
from engine_server.requests.scheduler_stats import SchedulerStats

# The environment's variable with the number of steps per second, each with a token for every request.
RATE = "BENCHMARK_MOCK_RATE"
NUM_BLOCKS = 1000
IDLE_MS = 250


class MockCore:
    """The requests in flight, by id, each with the number of its tokens so far."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._requests: dict[str, tuple[AddRequest, int]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def handle(self, message: FrontEndMessage) -> CallResult | None:
        match message:
            case AddRequest():
                self._requests[message.request_id] = message, 0
            case AbortRequests():
                for request_id in message.request_ids:
                    self._requests.pop(request_id, None)
            case Call():
                return CallResult(message.call_id, error="the mock core has no operations")
        return None

    def step(self) -> StepOutputs:
        """Give every request its next token."""
        steps = []
        for request_id, (request, number) in list(self._requests.items()):
            step = RequestStep(request_id, [self._words[number % len(self._words)]])
            if number == 0:
                step.scheduled = time.monotonic()
            if number + 1 == request.max_tokens:
                step.finish_reason = "length"
                del self._requests[request_id]
            else:
                self._requests[request_id] = request, number + 1
            steps.append(step)
        return StepOutputs(steps, SchedulerStats(num_running=len(self._requests), num_tokens=len(steps)))


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
    core = MockCore([token_id for token_id, text in enumerate(vocabulary.tokens) if is_word(text)])
    progress = ProgressClock(Path(folder, FILE))
    progress.tick()
    outputs.send(encoder.encode(Ready(NUM_BLOCKS, batch_invariant=False)))
    interval = 1 / float(os.environ[RATE])
    due = time.monotonic()
    while True:
        wait = max(0.0, 1000 * (due - time.monotonic())) if core.has_work else IDLE_MS
        if inputs.poll(wait):
            if returned := core.handle(decoder.decode(inputs.recv())):
                outputs.send(encoder.encode(returned))
            continue
        progress.tick()
        now = time.monotonic()
        if core.has_work and now >= due:
            outputs.send(encoder.encode(core.step()))
            due = max(due + interval, now)


def is_word(text: bytes) -> bool:
    return text.startswith(b" ") and text[1:].isalpha()


if __name__ == "__main__":
    child.run("core", serve)
