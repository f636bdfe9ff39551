"""The process of any rank but the first: `python -m engine_server.core.distributed.worker NAME FOLDER LIFELINE`."""

import gc
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed.child_process import run
from engine_server.core.distributed.runner_calls import CallDecoder
from engine_server.modeling.device.communicator import connect
from engine_server.modeling.platform.choice import choose_platform

MODULE = "engine_server.core.distributed.worker"
# The engine's configuration, in the folder that the workers share.
CONFIG_FILE = "config"


def rendezvous_address(folder: str) -> str:
    """Return the address at which ranks with a common folder meet."""
    return f"file://{folder}/store"


def serve(folder: str, fail: Callable[[str], None]) -> None:
    """Load this rank's part of the model, then execute the first rank's calls in order until the process ends."""
    config = msgspec.msgpack.decode(Path(folder, CONFIG_FILE).read_bytes(), type=EngineConfig)
    rank, size = int(sys.argv[1].removeprefix("rank ")), config.parallel_config.tensor_parallel_size
    platform = choose_platform(config.device_config, rank, size)
    communicator = connect(rendezvous_address(folder), rank, size, platform)
    runner = pkgutil.resolve_name(config.parallel_config.worker_cls)(config, communicator)
    gc.freeze()  # a full collection would make all ranks wait for this one
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.connect(f"ipc://{folder}/{sys.argv[1]}")
    decoder = CallDecoder()
    while True:
        method, args = decoder.decode(socket.recv())
        getattr(runner, method)(*args)


if __name__ == "__main__":
    run(sys.argv[1], serve)
