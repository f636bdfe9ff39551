"""The ranks that share a model, as one of them sees them, and their collectives."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from engine_server.modeling.platform.interface import Platform

PATIENCE = timedelta(hours=1)  # with a rank that still loads


@dataclass(eq=False)
class Ranks:
    """Alone, unless it is told otherwise."""

    rank: int = 0
    size: int = 1
    group: Any = None  # a backend of torch.distributed without its global state, which may be somebody else's

    def join(self, folder: str, platform: Platform) -> None:
        """Meet the others, by a file in `folder`, and over this machine's loopback alone."""
        store = distributed.FileStore(f"{folder}/store", self.size)  # type: ignore[attr-defined]
        store.set(str(self.rank), "")
        while not store.check([str(rank) for rank in range(self.size)]):
            self.check()
            time.sleep(0.01)
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
        self.group = platform.process_group(store, self.rank, self.size, PATIENCE)

    def tell(self, method: str, *args: Any) -> None:
        """The first lets the others do what it is about to do."""

    def check(self, patience: float = 0.0) -> None:
        """Raises EngineDeadError where the first learns within `patience` seconds that another has ended."""

    def sum(self, part: Tensor) -> Tensor:
        """The sum of what all ranks bring, in place."""
        self.group.allreduce([part]).wait()
        return part

    def gather(self, part: Tensor) -> Tensor:
        """What all ranks bring, side by side: [..., n] to [..., size * n]."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self.group.allgather([parts], [part]).wait()
        return torch.cat(parts, -1)

    def least(self, count: int, device: torch.device) -> int:
        """The least of the ranks' counts."""
        least = torch.tensor([count], device=device)
        self.group.allreduce([least], distributed.ReduceOp.MIN).wait()
        return int(least)

    def broadcast(self, tensor: Tensor) -> None:
        """Give it what the first rank has there."""
        self.group.broadcast([tensor]).wait()
