"""The GPU benchmark of the kernels at tiny sizes, with unchanged kernels."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import attention, layers
from benchmarks.gpu.limits import Limits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def wall(works: Sequence[Callable[[], object]]) -> float:
    started = time.perf_counter()
    for work in works:
        work()
    return time.perf_counter() - started


@pytest.fixture(autouse=True)
def tiny(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, layers):
        monkeypatch.setattr(module, "DEVICE", device)
        monkeypatch.setattr(module, "DTYPE", torch.float32)
        monkeypatch.setattr(module, "seconds", wall)
        monkeypatch.setattr(module, "CALLS", 2)
    if device.type == "cpu":
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=8)
        )
    monkeypatch.setattr(attention, "MODELS", {"tiny": attention.Heads(4, 2, 64)})
    monkeypatch.setattr(attention, "DECODES", ((2, 33),))
    monkeypatch.setattr(attention, "PREFILLS", ((2, 8, 20),))
    monkeypatch.setattr(attention, "WRITTEN", 32)
    monkeypatch.setattr(layers, "TOKENS", (3,))
    monkeypatch.setattr(layers, "SAMPLED", (2,))
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    models = {kind: {"model_type": kind, **sizes} for kind in ("llama", "qwen3")}
    monkeypatch.setattr(layers, "MODELS", models)
    for name, size in {"HIDDEN": 64, "WIDTH": 96, "VOCABULARY": 300}.items():
        monkeypatch.setattr(layers, name, size)


def test_kernel_benchmark_agrees_with_torch() -> None:
    rows = [*attention.measure(Limits(1.0, 1.0)), *layers.measure(Limits(1.0, 1.0))]
    assert [row.name.split()[0] for row in rows] == [
        "decode", "decode", "prefill", "write", "sum", "rotary", "sum", "norms,", "silu", "linear,", "sampling",
    ]  # fmt: skip
    for row in rows:
        assert row.measures["us"] > 0
        assert row.measures.get("error", 0) < (0.2 if "float8" in row.name else 1e-4)
