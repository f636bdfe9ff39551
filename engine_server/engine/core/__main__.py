"""The engine core's process: `python -m engine_server.engine.core FOLDER LIFELINE`, started by its client."""

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from engine_server.engine.config import EngineConfig
from engine_server.engine.messages import CoreMessage, Failed, FrontEndMessage, Phase, Ready
from engine_server.modeling import progress

IDLE_MS = 250  # how often a core without work says that it lives

logger = logging.getLogger("engine_server.engine.core")


def main() -> None:
    started = time.monotonic()
    folder, lifeline = sys.argv[1], int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s core: %(message)s")
    # A terminal's Ctrl-C reaches the whole group; it is for the parent to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, args=(lifeline, folder), daemon=True).start()
    context = zmq.Context()
    inputs, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set_hwm(0)
    inputs.connect(f"ipc://{folder}/input")
    outputs.connect(f"ipc://{folder}/output")
    encoder = msgspec.msgpack.Encoder()

    def send(message: CoreMessage) -> None:
        outputs.send(encoder.encode(message))

    try:
        serve(Path(folder), inputs, send, started)
    except Exception as error:
        logger.exception("the engine core can't go on")
        send(Failed(f"{type(error).__name__}: {error}"))
        outputs.close(linger=1000)
        context.term()
        sys.exit(1)


def serve(
    folder: Path, inputs: "zmq.Socket[bytes]", send: Callable[[CoreMessage], None], started: float
) -> None:
    # torch and transformers take seconds, in which the lifeline is watched already. What they make stays for good, so
    # the collector waits, and then never looks at it: the start is shorter, and so is each of its passes.
    gc.disable()
    from engine_server.engine.core.engine_core import EngineCore

    send(Phase("import", time.monotonic() - started))
    config = msgspec.msgpack.decode(inputs.recv(), type=EngineConfig)
    core = EngineCore(config, lambda name, seconds: send(Phase(name, seconds)))
    gc.freeze()
    gc.enable()
    progress.share(folder / progress.FILE)
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


def end_with_parent(lifeline: int, folder: str) -> None:
    """Wait for the other end to close, then clean up and go, whatever the main thread is doing."""
    socket.socket(fileno=lifeline).recv(1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
