"""Several ranks: the first tells the others, a process each, over ZMQ what it does, so that their collectives meet.

Nobody answers. A rank that can't go on ends, and with it the engine.
"""

import gc
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.distributed.child_process import Children, run
from engine_server.core.model_inputs import ModelInputs
from engine_server.modeling.loading.model_loader import choose_device
from engine_server.modeling.ranks import Ranks
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import RawTensor

# The methods of a ModelRunner that all ranks run, with their arguments' types; none of them calls another.
ORDERS: dict[str, Any] = {
    "capture_graphs": tuple[()],
    "forward": tuple[ModelInputs],
    "join_head": tuple[()],
    "collective_rpc": tuple[str, list[Any], dict[str, Any]],
    "erase": tuple[list[int]],
    "sleep": tuple[int],
    "wake": tuple[str, int],
}
MODULE = "engine_server.core.distributed.workers"  # python -m MODULE NAME FOLDER LIFELINE
CONFIG = "config"  # the file's name in the workers' folder


class FirstRank(Ranks):
    """Starts the others."""

    def __init__(self, config: EngineConfig, on_death: Callable[[str], None] | None) -> None:
        """`on_death` hears, in a thread of its own, of the first worker that ends, and why.

        Raises ValueError where there are too few GPUs, EngineDeadError where a worker can't start.
        """
        super().__init__(0, config.parallel_config.tensor_parallel_size)
        device = choose_device(config.device_config, self.rank, self.size)
        folder = tempfile.mkdtemp(prefix="fairlead-")
        Path(folder, CONFIG).write_bytes(msgspec.msgpack.encode(config))
        names = [f"rank {rank}" for rank in range(1, self.size)]
        self._workers = Children(MODULE, names, folder)
        if on_death is not None:
            self._workers.death.add_done_callback(lambda it: it.cancelled() or on_death(it.result()))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._sockets = [context.socket(zmq.PUSH) for _ in names]
        for name, socket in zip(names, self._sockets, strict=True):
            socket.set_hwm(0)
            socket.linger = 0
            socket.bind(f"ipc://{folder}/{name}")
        self._encoder = msgspec.msgpack.Encoder(enc_hook=plain)
        self.join(folder, device)
        if device.type == "cuda":  # where a collective would wait for whom has ended
            group = self.group
            self._workers.death.add_done_callback(lambda _: group.abort())

    def tell(self, method: str, *args: Any) -> None:
        self.check()
        data = self._encoder.encode((method, args))
        for socket in self._sockets:
            socket.send(data)

    def check(self, patience: float = 0.0) -> None:
        if patience:
            wait([self._workers.death], patience)
        if self._workers.death.done():
            raise EngineDeadError(self._workers.death.result())


def serve(folder: str, fail: Callable[[str], None]) -> None:
    """In a worker: do what the first rank does, one after the other."""
    config = msgspec.msgpack.decode(Path(folder, CONFIG).read_bytes(), type=EngineConfig)
    ranks = Ranks(int(sys.argv[1].removeprefix("rank ")), config.parallel_config.tensor_parallel_size)
    ranks.join(folder, choose_device(config.device_config, ranks.rank, ranks.size))
    runner = pkgutil.resolve_name(config.parallel_config.worker_cls)(config, ranks)
    gc.freeze()  # all ranks would wait for one that walks over what it loaded
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.connect(f"ipc://{folder}/{sys.argv[1]}")
    decoders = {name: msgspec.msgpack.Decoder(kind, dec_hook=unplain) for name, kind in ORDERS.items()}
    while True:
        method, args = msgspec.msgpack.decode(socket.recv(), type=tuple[str, msgspec.Raw])
        getattr(runner, method)(*decoders[method].decode(args))


def plain(value: Any) -> Any:
    """An array or a tensor as msgpack has it."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return RawTensor.of(value)


def unplain(kind: Any, data: list[Any]) -> Any:
    if kind is Tensor:
        return RawTensor(*data).tensor()
    dtype, shape, content = data
    return np.frombuffer(bytearray(content), dtype).reshape(shape)


if __name__ == "__main__":
    run(sys.argv[1], serve)
