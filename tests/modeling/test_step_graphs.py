"""Capture of steps as CUDA graphs, with a stand-in for torch's. tests/gpu has the tests that need a GPU."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine_server.modeling.graphs import step_graphs


class FakeCuda:
    """The current stream, and a graph whose context fails at its end before it leaves its stream, as torch's does."""

    def __init__(self) -> None:
        self.stream = "default"

    @contextmanager
    def graph(self, *_: Any, **__: Any) -> Any:
        self.stream = "capture"
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    def set_stream(self, stream: str) -> None:
        self.stream = stream


def test_capture_that_fails_leaves_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    for name in ("graph_pool_handle", "synchronize", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", fake.graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: fake.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", fake.set_stream)
    with pytest.raises(RuntimeError, match="not permitted"):
        dict(step_graphs.capture(lambda size: None, [1], lambda size: None))
    assert fake.stream == "default"
