"""The choice of a platform by the requested device and the kernels that can run on it."""

import pytest
import torch

from engine_server.config import DeviceConfig
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.native import library
from engine_server.modeling.platform.choice import choose_platform
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.cuda import CudaPlatform, TritonPlatform

CPU, GPU = DeviceConfig(device="cpu"), DeviceConfig(device="cuda")


@pytest.mark.parametrize(("loads", "expected"), [(True, NativePlatform), (False, CpuPlatform)])
def test_cpu_has_native_kernels_where_their_library_loads(
    loads: bool, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "loads", lambda: loads)
    assert type(choose_platform(CPU)) is expected


def test_gpu_has_triton_kernels_where_a_compiler_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CC", "cc")
    assert type(choose_platform(GPU)) is TritonPlatform
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert type(choose_platform(GPU)) is CudaPlatform


def test_gpu_multiplies_quantised_weights_by_kernels_where_triton_compiles() -> None:
    pytest.importorskip("triton")
    gpu = torch.device("cuda")
    dense = DenseFormat(torch.randn(8, 32))
    for format in (rounded_to_integers(dense, 4, 32), rounded_to_float8(dense)):
        assert not isinstance(format.arranged(TritonPlatform(gpu).weight_layout), QuantizedFormat)
        assert format.arranged(CudaPlatform(gpu).weight_layout) is format
    assert dense.arranged(TritonPlatform(gpu).weight_layout) is dense


def test_gpu_that_torch_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is cuda, and torch sees no GPU here"):
        choose_platform(GPU)
    assert choose_platform(DeviceConfig(device="auto")).device == torch.device("cpu")


def test_each_rank_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_platform(GPU, rank=1, ranks=2).device == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="tensor_parallel_size is 3 GPUs, and torch sees 2"):
        choose_platform(GPU, rank=1, ranks=3)
