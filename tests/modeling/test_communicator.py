"""Rendezvous and collectives of ranks, which are threads here; their collectives are real."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engine_server.modeling.device.communicator import Communicator, connect
from engine_server.modeling.platform.cpu import CpuPlatform

CPU = CpuPlatform()
SIZE = 2


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of torch's threads, which ranks on a CPU share."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.fixture(params=["file", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_ranks_meet_at_an_address_and_exchange_tensors(address: str) -> None:
    def collectives(rank: int) -> tuple[list[float], list[float], int, list[float]]:
        ranks = connect(address, rank, SIZE, CPU)
        total = ranks.sum(torch.tensor([1.0, rank]))
        gathered = ranks.gather(torch.tensor([[float(rank)]]))
        least = ranks.least(10 - rank, CPU.device)
        first = torch.tensor([float(rank)])
        ranks.broadcast(first)
        return total.tolist(), gathered[0].tolist(), least, first.tolist()

    with ThreadPoolExecutor(SIZE) as pool:
        results = list(pool.map(collectives, range(SIZE)))
    assert results == [([2.0, 1.0], [0.0, 1.0], 9, [0.0])] * SIZE


def test_rendezvous_gives_up_when_the_check_raises(tmp_path: Path) -> None:
    def check() -> None:
        raise RuntimeError("rank 1 has ended")

    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        connect(f"file://{tmp_path}/store", 0, SIZE, CPU, check)


def test_unknown_kind_of_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'etcd://x'; it must begin with file:// or tcp://"):
        connect("etcd://x", 0, SIZE, CPU)


def test_single_rank_needs_no_group() -> None:
    alone = Communicator()
    assert (alone.rank, alone.size) == (0, 1)
