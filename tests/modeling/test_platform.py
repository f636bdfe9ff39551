"""The choice of a platform by the requested device and the kernels that can run on it."""

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_server import EngineArgs, LLMEngine
from engine_server.config import DeviceConfig
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import LayerShape, WindowSpec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.native import library
from engine_server.modeling.platform import choice
from engine_server.modeling.platform.choice import choose_platform
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.cuda import CudaPlatform, TritonPlatform

CPU, GPU = DeviceConfig(device="cpu"), DeviceConfig(device="cuda")
ONLY_TRITON = DeviceConfig(device="cuda", kernels="triton")


@pytest.fixture
def gpu_without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU that torch sees, and a Triton that has nothing in its cache and finds no C compiler."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setattr(triton.runtime.driver, "_default", None)
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(("obstacle", "expected"), [(None, NativePlatform), ("no file", CpuPlatform)])
def test_cpu_has_native_kernels_where_their_library_loads(
    obstacle: str | None, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "obstacle", lambda: obstacle)
    assert type(choose_platform(CPU)) is expected


@pytest.mark.parametrize(
    ("level", "reason"),
    [("avx2", "there is no /nowhere/avx2.so: with g++ 11"), ("riscv64", "there are no kernels for riscv64")],
)
def test_cpu_without_compiled_kernels_computes_in_plain_torch_and_warns_with_the_reason(
    level: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "instruction_level", lambda held=None: level)
    monkeypatch.setattr(library, "library_file", lambda level: Path(f"/nowhere/{level}.so"))
    library.kernels.cache_clear()
    assert type(choose_platform(CPU)) is CpuPlatform
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"kernels: plain torch, which is slower: {reason}" in record.message


def test_gpu_has_triton_kernels_where_one_of_them_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choice, "check_triton", lambda device: None)
    assert [type(choose_platform(config)) for config in (GPU, ONLY_TRITON)] == [TritonPlatform] * 2


@pytest.mark.usefixtures("gpu_without_compiler")
def test_gpu_without_a_compiler_computes_in_plain_torch_and_warns_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert type(choose_platform(GPU)) is CudaPlatform
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "kernels: plain torch" in record.message
    assert "Failed to find C compiler" in record.message


@pytest.mark.usefixtures("gpu_without_compiler")
def test_gpu_without_a_compiler_is_refused_with_the_reason_if_triton_is_required() -> None:
    with pytest.raises(
        ValueError, match=r"kernels is triton, which.*: RuntimeError: Failed to find C compiler"
    ):
        choose_platform(ONLY_TRITON)


@pytest.mark.usefixtures("gpu_without_compiler")
def test_missing_headers_of_python_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setattr("sysconfig.get_paths", lambda **_: {"include": str(tmp_path)})
    with pytest.raises(ValueError, match=rf"exit status 1.* no Python\.h in .*{tmp_path}"):
        choose_platform(ONLY_TRITON)


def test_kernel_that_triton_refuses_is_reported_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from triton.runtime.errors import PTXASError

    def refuse(*arguments: object, **options: object) -> None:
        raise PTXASError("the target is too old")

    ones = torch.ones
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(shape))
    monkeypatch.setattr(triton.runtime.driver, "_active", object())
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", refuse)
    with pytest.raises(ValueError, match=r"kernels is triton, which.*PTXASError: .*the target is too old"):
        choose_platform(ONLY_TRITON)


def test_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    with pytest.raises(ValueError, match=r"kernels is triton, which.*triton"):
        choose_platform(ONLY_TRITON)


@pytest.mark.parametrize(
    ("device", "lack"),
    [("cpu", "device is cpu"), ("auto", "torch sees no GPU"), ("cuda", "torch sees no GPU")],
)
def test_required_kernels_of_triton_are_refused_without_a_gpu(
    device: str, lack: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("engine_server.core.model_runner.LoadedModel", None)  # the weights are not touched
    args = EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True, device=device, kernels="triton")
    with pytest.raises(ValueError, match=lack):
        LLMEngine.from_engine_args(args)


def test_engine_logs_once_which_kernels_it_chose(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            LLMEngine.from_engine_args(
                EngineArgs(
                    model=str(tiny_llama), device="cpu", skip_tokenizer_init=True, num_gpu_blocks_override=16
                )
            )
        return [record.message for record in caplog.records if record.message.startswith("kernels: ")]

    if library.loads():
        level, threads = library.instruction_level(), torch.get_num_threads()
        assert lines() == [f"kernels: C++, {level}, {threads} threads, attention by NativeAttention"]
    library.kernels.cache_clear()
    monkeypatch.setattr(library, "library_file", lambda level: Path("/nowhere/kernels.so"))
    (line,) = lines()
    assert line.startswith("kernels: plain torch")
    assert "/nowhere/kernels.so" in line


def test_log_of_triton_kernels_has_the_launch_settings_of_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from engine_server.modeling.attention.triton_backend import TritonAttention

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    target = SimpleNamespace(arch=90)
    driver = SimpleNamespace(get_current_device=lambda: 90, get_current_target=lambda: target)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    assert TritonPlatform(torch.device("cuda")).compiled_by() == f"triton {triton.__version__}, sm_90"
    layout = lay_out(
        [LayerShape(2, 128, 128), LayerShape(1, 64, 64), LayerShape(2, 128, 128, WindowSpec(8))], longest=64
    )
    attention = TritonAttention(layout, [1, 1], 16, torch.bfloat16, CpuPlatform(), processors=1)
    assert attention.describe(32, torch.bfloat16) == (
        "TritonAttention, decode 64: 32 rows, 64 keys, 2 warps, 5 stages; decode 128: 16 rows, 64 keys, 2 warps, "
        "5 stages; prefill 64: 128 rows, 64 keys, 8 warps, 5 stages; prefill 128: 128 rows, 64 keys, 8 warps, 5 stages"
    )
    attention.require_invariance(torch.float32)
    assert attention.describe(32, torch.float32) == (
        "TritonAttention, prefill 64: 64 rows, 32 keys, 8 warps, 2 stages; "
        "prefill 128: 64 rows, 32 keys, 8 warps, 2 stages"
    )


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
