"""The first of several ranks, and the others' processes: told over ZMQ what it does, so that their collectives meet.

Nobody answers. A rank that can't go on ends, and with it the engine.
"""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq
from torch import Tensor

from engine_server.child import Child
from engine_server.engine.config import EngineConfig
from engine_server.engine.core.model_loader import choose_device
from engine_server.engine.core.model_runner import ModelInputs
from engine_server.engine.errors import EngineDeadError
from engine_server.engine.messages import RawTensor
from engine_server.modeling.ranks import Ranks

# The methods of a ModelRunner that all ranks run, with their arguments' types; none of them calls another.
ORDERS: dict[str, Any] = {
    "prepare": tuple[()],
    "capture_graphs": tuple[()],
    "forward": tuple[ModelInputs],
    "erase": tuple[list[int]],
    "sleep": tuple[int],
    "wake": tuple[str, int],
}
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
        module = "engine_server.engine.core.worker"
        children = [Child(f"rank {rank}", module, str(rank), folder) for rank in range(1, self.size)]
        self._death: Future[str] = Future()
        weakref.finalize(self, end, children, self._death, folder)
        if on_death is not None:
            self._death.add_done_callback(lambda death: death.cancelled() or on_death(death.result()))
        for child in children:
            threading.Thread(target=watch, args=(child, self._death), daemon=True).start()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._sockets = [context.socket(zmq.PUSH) for _ in children]
        for rank, socket in enumerate(self._sockets, 1):
            socket.set_hwm(0)
            socket.linger = 0
            socket.bind(f"ipc://{folder}/{rank}")
        self._encoder = msgspec.msgpack.Encoder(enc_hook=plain)
        self.join(folder, device)
        if device.type == "cuda":  # where a collective would wait for whom has ended
            group = self.group
            self._death.add_done_callback(lambda _: group.abort())

    def tell(self, method: str, *args: Any) -> None:
        self.check()
        data = self._encoder.encode((method, args))
        for socket in self._sockets:
            socket.send(data)

    def check(self, patience: float = 0.0) -> None:
        wait([self._death], patience)
        if self._death.done():
            raise EngineDeadError(self._death.result())


def watch(child: Child, death: "Future[str]") -> None:
    reason = child.death()
    with suppress(InvalidStateError):  # another was first, or it was let go
        death.set_result(reason)


def end(children: list[Child], death: "Future[str]", folder: str) -> None:
    death.cancel()
    for child in children:
        child.let_go()
    for child in children:
        child.wait(timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


def orders(folder: str, rank: int) -> Iterator[tuple[str, Any]]:
    """What the first rank does, one after the other: method and arguments."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.connect(f"ipc://{folder}/{rank}")
    decoders = {name: msgspec.msgpack.Decoder(kind, dec_hook=unplain) for name, kind in ORDERS.items()}
    decoder = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
    while True:
        method, args = decoder.decode(socket.recv())
        yield method, decoders[method].decode(args)


def read_config(folder: str) -> EngineConfig:
    return msgspec.msgpack.decode(Path(folder, CONFIG).read_bytes(), type=EngineConfig)


def plain(value: Any) -> RawTensor:
    """An array or a tensor as msgpack has it."""
    return RawTensor.of(torch.as_tensor(value))


def unplain(kind: Any, data: list[Any]) -> Any:
    tensor = RawTensor(*data).tensor()
    return tensor if kind is Tensor else tensor.numpy()
