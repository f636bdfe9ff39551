"""An engine core that computes nothing: every request gets a token at a fixed rate.

    python -m benchmarks.mock_core FOLDER LIFELINE

It speaks the core's protocol, so that the front end and the HTTP server are measured without a model.
"""

import time
from collections.abc import Callable

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed import child_process as child
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    FrontEndMessage,
    Ready,
    RequestStep,
    StepOutputs,
)
from engine_server.requests.scheduler_stats import SchedulerStats

TOKENS_PER_SECOND = 20.0
# The tokens of every answer, over and over: words of SmolLM2's vocabulary.
TOKEN_IDS = range(1000, 1512)


def serve(folder: str, fail: Callable[[str], None]) -> None:
    """Answer the front end's messages, and step at the fixed rate, until the process ends."""
    context = zmq.Context()
    inputs, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set_hwm(0)
    inputs.connect(f"ipc://{folder}/input")
    outputs.connect(f"ipc://{folder}/output")
    encode = msgspec.msgpack.Encoder().encode
    msgspec.msgpack.decode(inputs.recv(), type=EngineConfig)
    outputs.send(encode(Ready(num_blocks=1 << 16)))
    decode = msgspec.msgpack.Decoder(FrontEndMessage).decode
    # The number of tokens that each request has, and its maximum.
    made: dict[str, int] = {}
    limits: dict[str, int] = {}
    next_step = time.monotonic()
    while True:
        wait = max(0, int(1000 * (next_step - time.monotonic())))
        while inputs.poll(wait):
            match decode(inputs.recv()):
                case AddRequest() as request:
                    made[request.request_id], limits[request.request_id] = 0, request.max_tokens
                case AbortRequests(request_ids):
                    for request_id in request_ids:
                        made.pop(request_id, None)
                case Call() as call:
                    outputs.send(encode(CallResult(call.call_id)))
            wait = 0
        if time.monotonic() < next_step:
            continue
        next_step += 1 / TOKENS_PER_SECOND
        steps = []
        for request_id, count in list(made.items()):
            finished = count + 1 == limits[request_id]
            token_id = TOKEN_IDS[count % len(TOKEN_IDS)]
            steps.append(RequestStep(request_id, [token_id], finish_reason="length" if finished else None))
            if finished:
                del made[request_id]
            else:
                made[request_id] = count + 1
        if steps:
            outputs.send(encode(StepOutputs(steps, SchedulerStats(num_running=len(made)))))


if __name__ == "__main__":
    child.run("core", serve)
