"""The GPU benchmark of the kernels at tiny sizes, with unchanged kernels."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import attention, layers, limits, mixture, quantised
from benchmarks.gpu.limits import Limits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def wall(works: Sequence[Callable[[], object]]) -> float:
    started = time.perf_counter()
    for work in works:
        work()
    return time.perf_counter() - started


@pytest.fixture(autouse=True)
def tiny(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, layers, quantised, mixture):
        monkeypatch.setattr(module, "DEVICE", device)
        monkeypatch.setattr(module, "DTYPE", torch.float32)
        monkeypatch.setattr(module, "seconds", wall)
    for module in (attention, layers, limits):
        monkeypatch.setattr(module, "CALLS", 2)
    if device.type == "cpu":
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=8)
        )
    monkeypatch.setattr(attention, "MODELS", {"tiny": attention.Heads(4, 2, 64)})
    monkeypatch.setattr(attention, "DECODES", ((2, 33),))
    monkeypatch.setattr(attention, "PREFILLS", ((2, 8, 20),))
    monkeypatch.setattr(attention, "WRITTEN", 32)
    monkeypatch.setattr(quantised, "SIZES", (quantised.Size(24, 128),))
    monkeypatch.setattr(quantised, "ROWS", (1, 3))
    for module in (layers, mixture):
        monkeypatch.setattr(module, "TOKENS", (3,))
    sizes = {"hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
    monkeypatch.setattr(mixture, "CONFIG", sizes)
    monkeypatch.setattr(mixture, "CANDIDATES", {16: ((3,), ((32, 64, 4, 2), (64, 64, 4, 3)))})
    monkeypatch.setattr(layers, "SAMPLED", (2,))
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    models = {kind: {"model_type": kind, **sizes} for kind in ("llama", "qwen3")}
    monkeypatch.setattr(layers, "MODELS", models)
    for name, size in {"HIDDEN": 64, "WIDTH": 96, "VOCABULARY": 300}.items():
        monkeypatch.setattr(layers, name, size)


def test_kernel_benchmark_agrees_with_torch() -> None:
    most = Limits(1.0, 1.0)
    rows = [*attention.measure(most), *layers.measure(most), *quantised.measure(most), *mixture.measure(most)]
    assert [row.name.split()[0] for row in rows] == [
        "decode", "decode", "prefill", "write", "sum", "rotary", "sum", "norms,", "silu", "linear,", "sampling",
        "4", "4", "float8", "float8", "MXFP4", "MXFP4", "NVFP4", "NVFP4", "experts", "experts", "experts",
    ]  # fmt: skip
    for row in rows:
        assert row.measures["us"] > 0
        assert row.measures.get("error", 0) < (0.2 if "float8" in row.name else 1e-4)


def test_launch_settings_of_experts_are_printed_from_the_fastest_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with torch.inference_mode():
        mixture.tune("int4")
    *lines, _seconds = capsys.readouterr().out.splitlines()
    assert all(line.startswith("int4 3: 16 rows, ") for line in lines)
    totals = [float(line.split()[-2]) for line in lines]
    assert len(totals) == 2 and totals == sorted(totals)
