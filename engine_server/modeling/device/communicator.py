"""Collectives among the ranks that share a model."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from engine_server.modeling.device.interface import Device
from engine_server.modeling.native.recording import one_operation

# Time that a rank waits for another one that is still loading.
TIMEOUT = timedelta(hours=1)
POLL_SECONDS = 0.01


class Communicator:
    """One rank's end of a group's collectives, which all ranks must call in the same order.

    rank: 0 to `size` - 1. A group of one rank has no process group and calls no collective.
    group: a backend of torch.distributed. torch's global process group is not used, so that other code can.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group

    @one_operation
    def sum(self, part: Tensor) -> Tensor:
        """Add up the ranks' tensors in place, and return the sum."""
        self._group.allreduce([part]).wait()
        return part

    @one_operation
    def gather(self, part: Tensor) -> Tensor:
        """Concatenate the ranks' tensors along the last dimension: [..., n] to [..., size * n]."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._group.allgather([parts], [part]).wait()
        return torch.cat(parts, -1)

    def least(self, count: int, device: torch.device) -> int:
        """Return the least of the ranks' counts."""
        least = torch.tensor([count], device=device)
        self._group.allreduce([least], distributed.ReduceOp.MIN).wait()
        return int(least)

    @one_operation
    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with the first rank's."""
        self._group.broadcast([tensor]).wait()

    def abort(self) -> None:
        """End collectives in flight, whose results are then arbitrary. For NCCL only, from any thread."""
        self._group.abort()


def connect(
    address: str, rank: int, size: int, platform: Device, check: Callable[[], None] = lambda: None
) -> Communicator:
    """Meet the other ranks and return this rank's communicator: NCCL between GPUs, Gloo between CPUs.

    address: file:///PATH on a file system that all ranks see, or tcp://HOST:PORT where rank 0 listens.
    check: called while ranks are missing; it raises an error to give up.
    """
    store = open_store(address, rank, size)
    store.set(str(rank), "")
    while not store.check([str(other) for other in range(size)]):
        check()
        time.sleep(POLL_SECONDS)
    for library in ("GLOO", "NCCL"):  # all ranks are on this machine
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    return Communicator(rank, size, platform.process_group(store, rank, size, TIMEOUT))


def open_store(address: str, rank: int, size: int) -> Any:
    """Open the key-value store by which ranks find each other. Raises ValueError for an unknown kind of address."""
    kind, _, location = address.partition("://")
    if kind == "file":
        return distributed.FileStore(location, size)  # type: ignore[attr-defined]
    if kind == "tcp":
        host, _, port = location.rpartition(":")
        return distributed.TCPStore(host, int(port), size, rank == 0, TIMEOUT, wait_for_workers=False)  # type: ignore[attr-defined]
    raise ValueError(f"the rendezvous address is {address!r}; it must begin with file:// or tcp://")
