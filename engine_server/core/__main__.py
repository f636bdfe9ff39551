"""The engine core's process: `python -m engine_server.core FOLDER LIFELINE`, started by its client."""

import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed import child_process as child
from engine_server.modeling.device.progress import FILE, ProgressClock
from engine_server.requests.messages import CoreMessage, FrontEndMessage, Phase, Ready

if TYPE_CHECKING:
    from engine_server.core.engine_core import EngineCore

# Milliseconds between two reports of a core that has no work.
IDLE_MS = 250
# Milliseconds until a core whose requests are all being prepared looks again.
PREPARING_MS = 1


def serve(folder: str, fail: Callable[[str], None]) -> None:
    """Load the model, then handle messages and run steps until the process ends."""
    started = time.monotonic()
    context = zmq.Context()
    inputs, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set_hwm(0)
    inputs.connect(f"ipc://{folder}/input")
    outputs.connect(f"ipc://{folder}/output")
    encoder = msgspec.msgpack.Encoder()

    def send(message: CoreMessage) -> None:
        outputs.send(encoder.encode(message))

    # The imports of torch and transformers take seconds, so the lifeline is watched before them. Their objects are
    # never freed, so they are excluded from garbage collection, which shortens the start and every later collection.
    gc.disable()
    from engine_server.core.engine_core import EngineCore

    send(Phase("import", time.monotonic() - started))
    config = msgspec.msgpack.decode(inputs.recv(), type=EngineConfig)
    progress = ProgressClock(Path(folder, FILE))
    core = EngineCore(config, lambda name, seconds: send(Phase(name, seconds)), fail, progress)
    gc.freeze()
    gc.enable()
    progress.tick()
    send(Ready(core.facts))
    decoder = msgspec.msgpack.Decoder(FrontEndMessage)

    def receive(milliseconds: int) -> FrontEndMessage | None:
        if not inputs.poll(milliseconds):
            return None
        first, *behind = inputs.recv_multipart(copy=False)
        message: FrontEndMessage = decoder.decode(first.buffer)
        message.attach([frame.buffer for frame in behind])
        return message

    run(core, receive, send)


def run(
    core: "EngineCore",
    receive: Callable[[int], FrontEndMessage | None],
    send: Callable[[CoreMessage], None],
) -> NoReturn:
    """Handle messages and run steps until one of the functions raises an exception.

    receive: returns the next message, or None if there is none after so many milliseconds.
    """
    while True:
        while message := receive(0 if core.has_work else idle_wait(core)):
            if returned := core.handle(message):
                send(returned)
            if not core.has_work:
                send(core.outputs())  # the last request was aborted: report that no request is running
        for returned in core.operations.finished():
            send(returned)
        if core.has_work or core.scheduler.seconds_to_deadline() <= 0:
            results = core.outputs()
            for part in core.prompt_logprobs():
                send(part)
            for wanted in core.scheduler.pictures.take_wanted():
                send(wanted)
            send(results)
        else:
            core.idle()


def idle_wait(core: "EngineCore") -> int:
    """Return how many milliseconds a core without work may wait for a message, at most until the next deadline."""
    scheduler = core.scheduler
    preparing = core.operations.waiting or scheduler.prepares
    longest = PREPARING_MS if preparing else IDLE_MS
    return math.ceil(min(longest, 1000 * scheduler.seconds_to_deadline()))


if __name__ == "__main__":
    child.run("core", serve)
