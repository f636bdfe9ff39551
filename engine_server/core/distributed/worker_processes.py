"""The processes of all ranks but the first, which repeat its calls so that their collectives match."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed.child_process import Children
from engine_server.core.distributed.runner_calls import CallEncoder
from engine_server.core.distributed.worker import CONFIG_FILE, MODULE, rendezvous_address
from engine_server.modeling.device.communicator import Communicator, connect
from engine_server.modeling.platform.choice import choose_platform
from engine_server.requests.errors import EngineDeadError


class WorkerProcesses:
    """The other ranks' processes, controlled by the first rank. There may be none.

    Calls have no results. A worker that fails ends, which ends the engine.

    communicator: the first rank's.
    """

    def __init__(
        self,
        communicator: Communicator,
        children: Children | None = None,
        sockets: Sequence["zmq.Socket[bytes]"] = (),
    ) -> None:
        """sockets: one for each child, which carries encoded calls."""
        self.communicator = communicator
        self._children = children
        self._sockets = sockets
        self._encoder = CallEncoder()

    def broadcast(self, method: str, *args: Any) -> None:
        """Have every worker call a method of its ModelRunner. Raises EngineDeadError if one has ended."""
        if not self._sockets:
            return
        self.check()
        data = self._encoder.encode(method, args)
        for socket in self._sockets:
            socket.send(data)

    def check(self, patience: float = 0.0) -> None:
        """Raise EngineDeadError if a worker has ended, or ends within `patience` seconds."""
        if self._children is not None:
            check_alive(self._children, patience)


def start_workers(config: EngineConfig, on_death: Callable[[str], None] | None = None) -> WorkerProcesses:
    """Start a process for each rank but the first, and connect the first to them.

    on_death: called in another thread with the reason when any worker ends.
    Raises ValueError if there are too few GPUs, EngineDeadError if a worker cannot start.
    """
    size = config.parallel_config.tensor_parallel_size
    if size == 1:
        return WorkerProcesses(Communicator())
    platform = choose_platform(config.device_config, 0, size)
    folder = tempfile.mkdtemp(prefix="fairlead-")
    Path(folder, CONFIG_FILE).write_bytes(msgspec.msgpack.encode(config))
    names = [f"rank {rank}" for rank in range(1, size)]
    children = Children(MODULE, names, folder)
    if on_death is not None:
        children.death.add_done_callback(lambda death: death.cancelled() or on_death(death.result()))
    sockets = [bind(f"ipc://{folder}/{name}") for name in names]
    communicator = connect(rendezvous_address(folder), 0, size, platform, lambda: check_alive(children))
    if platform.asynchronous:  # a collective would wait forever for a worker that has ended
        children.death.add_done_callback(lambda _: communicator.abort())
    return WorkerProcesses(communicator, children, sockets)


def check_alive(children: Children, patience: float = 0.0) -> None:
    """Raise EngineDeadError if one of the children has ended, or ends within `patience` seconds."""
    if patience:
        wait([children.death], patience)
    if children.death.done():
        raise EngineDeadError(children.death.result())


def bind(address: str) -> "zmq.Socket[bytes]":
    """Bind a socket that queues any number of messages and drops them when it is closed."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(0)
    socket.linger = 0
    socket.bind(address)
    return socket
