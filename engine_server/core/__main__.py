"""The engine core's process: `python -m engine_server.core FOLDER LIFELINE`, started by its client."""

import gc
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed import child_process as child
from engine_server.modeling.progress import FILE, ProgressClock
from engine_server.requests.messages import CoreMessage, FrontEndMessage, Phase, Ready

IDLE_MS = 250  # how often a core without work says that it lives


def serve(folder: str, fail: Callable[[str], None]) -> None:
    started = time.monotonic()
    context = zmq.Context()
    inputs, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set_hwm(0)
    inputs.connect(f"ipc://{folder}/input")
    outputs.connect(f"ipc://{folder}/output")
    encoder = msgspec.msgpack.Encoder()

    def send(message: CoreMessage) -> None:
        outputs.send(encoder.encode(message))

    # torch and transformers take seconds, in which the lifeline is watched already. What they make stays for good, so
    # the collector waits, and then never looks at it: the start is shorter, and so is each of its passes.
    gc.disable()
    from engine_server.core.engine_core import EngineCore

    send(Phase("import", time.monotonic() - started))
    config = msgspec.msgpack.decode(inputs.recv(), type=EngineConfig)
    progress = ProgressClock(Path(folder, FILE))
    core = EngineCore(config, lambda name, seconds: send(Phase(name, seconds)), fail, progress)
    gc.freeze()
    gc.enable()
    progress.tick()
    send(Ready(core.num_blocks))
    decoder = msgspec.msgpack.Decoder(FrontEndMessage)
    while True:
        while inputs.poll(0 if core.has_work else IDLE_MS):
            if returned := core.handle(decoder.decode(inputs.recv())):
                send(returned)
            if not core.has_work:
                send(core.outputs())  # the last request was aborted: tell that nothing runs any more
        if core.has_work:
            send(core.outputs())
        else:
            progress.tick()


if __name__ == "__main__":
    child.run("core", serve)
