"""Compilation of the kernels for a GPU, which the interpreter doesn't check."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import tiered

from engine_server.modeling.memory.cache_layout import FLOAT8, Pages
from engine_server.modeling.scoring import Scoring

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from engine_server.modeling.formats.low_rank import LowRankTable  # noqa: E402
from engine_server.modeling.kernels import launch  # noqa: E402
from engine_server.modeling.kernels.activation import gated  # noqa: E402
from engine_server.modeling.kernels.attention import decode, prefill  # noqa: E402
from engine_server.modeling.kernels.cache_write import write_cache  # noqa: E402
from engine_server.modeling.kernels.expert_launch import DENSE, QUANTISED, launch_for  # noqa: E402
from engine_server.modeling.kernels.expert_products import ExpertWeights, multiply  # noqa: E402
from engine_server.modeling.kernels.expert_sum import weighted_sum  # noqa: E402
from engine_server.modeling.kernels.expert_tiles import ExpertTiles, most_tiles, plan_tiles  # noqa: E402
from engine_server.modeling.kernels.low_rank import add_low_rank  # noqa: E402
from engine_server.modeling.kernels.matmul import linear  # noqa: E402
from engine_server.modeling.kernels.norm import rms_norm  # noqa: E402
from engine_server.modeling.kernels.quantized_matmul import FLOAT8 as FLOAT8_BITS  # noqa: E402
from engine_server.modeling.kernels.quantized_matmul import float8_linear, integer_linear  # noqa: E402
from engine_server.modeling.kernels.rotary import rotate  # noqa: E402
from engine_server.modeling.kernels.router import choose  # noqa: E402
from engine_server.modeling.kernels.sampling import sample  # noqa: E402
from engine_server.modeling.kernels.work_list import plan_work  # noqa: E402

MULTIPROCESSOR_BYTES = 99 << 10  # of shared memory, on the smallest GPUs with bfloat16
# Of registers, where float8 is converted on compute capability 8.9.
MOST_SPILLED = 8
# Of shared memory that one program may take, by compute capability.
SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}


class Driver:
    """A fake driver with the functions that compilation needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """Return another device for each capability: Triton keeps what it compiled for a device."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list:
    """Compile launched kernels instead of running them, and return the list of them."""
    kernels = []
    run = JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options) -> None:
        kernels.append(run(self, *arguments, grid=grid, warmup=True, **options))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(90))
    return kernels


@pytest.fixture
def compile_for(
    compiled: list, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Callable[[], object]], list]:
    """Return a function that returns the kernels of a launch, compiled for a compute capability."""

    def compile_launch(capability: int, launch: Callable[[], object]) -> list:
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver(capability))
        compiled.clear()
        launch()
        return list(compiled)

    return compile_launch


def spilled_bytes(kernel: Any, capability: int, folder: Path) -> int:
    """Return the bytes of registers that NVIDIA's assembler spills to memory."""
    ptx = folder / "kernel.ptx"
    ptx.write_text(kernel.asm["ptx"])
    name = f"sm_{capability}" + "a" * (capability >= 90)
    command = [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={name}", str(ptx), "-o", os.devnull]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", report)))


def copies_in_flight(kernel: Any) -> list[int]:
    """Return the numbers of copies that may still be under way where a loop waits for those that it needs."""
    return [int(number) for number in re.findall(r"async_wait .*?num = (\d+)", kernel.asm["ttgir"])]


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


@pytest.mark.thorough
def test_attention_kernels_compile_for_hopper(compiled: list) -> None:
    """Compile for the heads of Llama 3 8B: prefill without options, decode with all options, and a float8 cache."""
    plain, new = Pages(tensor(3, 16, 8, 128)), tensor(8, 8, 128)
    float8 = Pages(tensor(3, 16, 8, 128, dtype=FLOAT8), tensor(3, 16, 8, 1, dtype=torch.float32))
    query, out = tensor(8, 32, 128), tensor(8, 32, 128)
    sequences, table = torch.empty(2, 4, dtype=torch.int32), torch.empty(2, 3, dtype=torch.int32)
    for pages in (plain, float8):
        write_cache(pages, pages, new, new, torch.empty(8, dtype=torch.int32))
    prefill(out, query, plain, plain, table, sequences, Scoring(0.1))
    work = plan_work(sequences, window=20, spare=4)
    decode(out, query, float8, float8, table, sequences, Scoring(0.1, 20, 5.0, tensor(32), tensor(32)), work)
    _write, quantise, fill, _plan, part, _join = compiled
    assert "cvt.rn.satfinite.e4m3x2.f32" in quantise.asm["ptx"]
    assert "wgmma" in fill.asm["ptx"]  # Hopper's tensor cores, several warps at once
    assert "mma.sync" in part.asm["ptx"]
    assert all(kernel.metadata.shared <= SHARED_BYTES[90] for kernel in compiled)


def test_module_kernels_compile_for_hopper(compiled: list) -> None:
    """Compile for the sizes of Llama 3 8B, and for heads with the norms and rotations of Qwen 3 and GLM."""
    hidden, weight, joined = tensor(1, 8, 4096), tensor(4096), tensor(1, 8, 28672)
    rms_norm(hidden, weight, 1e-5)
    rms_norm(tensor(1, 8, 48, 128)[:, :, :32], tensor(128), 1e-6, 1.0)
    rms_norm(hidden, weight, 1e-5, residual=hidden)
    gated("gelu", joined)
    gated("gelu_tanh", joined)
    for interleaved in (False, True):
        rotate(tensor(8, 32, 128), tensor(8, 8, 128), tensor(8, 32), tensor(8, 32), interleaved)
    linear(hidden, tensor(6144, 4096), tensor(6144))
    assert "wgmma" in compiled[-1].asm["ptx"]
    assert all(kernel.metadata.shared <= MULTIPROCESSOR_BYTES for kernel in compiled)


@pytest.mark.parametrize(
    ("capability", "dim"), tiered([(c, d) for c in SHARED_BYTES for d in launch.PREFILL], (90, 128))
)
def test_attention_copies_the_next_keys_and_values_while_it_computes(
    compile_for: Any, tmp_path: Path, capability: int, dim: int
) -> None:
    """Compile for 32 query heads of 8 KV heads, in bfloat16, and read what Triton and NVIDIA's assembler made of it."""
    pages, query, out = Pages(tensor(3, 16, 8, dim)), tensor(8, 32, dim), tensor(8, 32, dim)
    sequences, table = torch.empty(2, 4, dtype=torch.int32), torch.empty(2, 3, dtype=torch.int32)
    given, scoring = (out, query, pages, pages, table, sequences), Scoring(0.1)
    (fill,) = compile_for(capability, lambda: prefill(*given, scoring))
    _plan, part, _join = compile_for(
        capability, lambda: decode(*given, scoring, plan_work(sequences, window=None, spare=4))
    )
    for kernel in (fill, part):
        assert kernel.metadata.shared <= SHARED_BYTES[capability]
        assert spilled_bytes(kernel, capability, tmp_path) == 0
        # One copy each of K and V is under way, and those of the block table before them.
        assert max(copies_in_flight(kernel)) >= 3


@pytest.mark.thorough
def test_sampling_kernels_compile_for_hopper(compiled: list) -> None:
    """Compile for the vocabularies of GPT-2, whose rows are not aligned, and of Gemma 3."""
    for logits in (tensor(2, 50257), tensor(2, 262144, dtype=torch.float32)):
        sample(logits, torch.zeros(2, 8, dtype=torch.int32))
    assert len(compiled) == 4
    assert all(kernel.metadata.shared <= MULTIPROCESSOR_BYTES for kernel in compiled)


@pytest.mark.thorough
@pytest.mark.parametrize("capability", [80, 90])
def test_products_with_quantised_weights_compile_for_ampere_and_hopper(
    compiled: list, monkeypatch: pytest.MonkeyPatch, capability: int
) -> None:
    """Compile for a projection of Llama 3 8B, in decode and for prompts, in every format."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(capability))
    scales, per_output = tensor(1024, 32, dtype=torch.float16), tensor(1024, 1, dtype=torch.float32)
    eight_bits = tensor(1024, 4096, dtype=torch.uint8)
    for rows in (1, 100):
        x = tensor(rows, 4096)
        for minima in (None, scales):
            four_bits = tensor(1024, 2048, dtype=torch.uint8)
            integer_linear(x, four_bits, scales, minima, 4, 128, tensor(1024))
        integer_linear(x, eight_bits, tensor(1024, 128), None, 8, 32, None)
        float8_linear(x, tensor(1024, 4096, dtype=FLOAT8), per_output, 4096, None)
    integer_linear(tensor(100, 4096, dtype=torch.float32), eight_bits, per_output, None, 8, 4096, None)
    assert len(compiled) == 9
    assert all("mma.sync" in kernel.asm["ptx"] or "wgmma" in kernel.asm["ptx"] for kernel in compiled[:8])
    assert all(kernel.metadata.shared <= MULTIPROCESSOR_BYTES for kernel in compiled)


@pytest.mark.thorough
@pytest.mark.parametrize("capability", [80, 90])
def test_low_rank_updates_compile_for_ampere_and_hopper(
    compiled: list, monkeypatch: pytest.MonkeyPatch, capability: int
) -> None:
    """Compile for a part of a fused projection of Llama 3 8B."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(capability))
    for rank in (8, 64):
        table = LowRankTable(4096, 1024, 4, rank, torch.bfloat16, torch.device("cpu"))
        out, x = tensor(100, 6144)[:, 4096:5120], tensor(100, 4096)
        add_low_rank(out, x, torch.zeros(100, dtype=torch.int32), *table.tensors)
    assert len(compiled) == 4
    assert all("mma.sync" in kernel.asm["ptx"] or "wgmma" in kernel.asm["ptx"] for kernel in compiled)
    assert all(kernel.metadata.shared <= MULTIPROCESSOR_BYTES for kernel in compiled)


def expert_weights(form: str, outputs: int, inputs: int, experts: int = 128) -> ExpertWeights:
    rows = experts * outputs
    scales = tensor(rows, inputs // 128, dtype=torch.float16)
    match form:
        case "int4":
            codes = tensor(rows, inputs // 2, dtype=torch.uint8)
            return ExpertWeights(codes, outputs, None, scales, scales, 4, 128)
        case "float8":
            codes = tensor(rows, inputs, dtype=torch.uint8)
            return ExpertWeights(codes, outputs, None, scales.float(), None, FLOAT8_BITS.value, 128)
        case _:
            return ExpertWeights(tensor(rows, inputs), outputs)


@pytest.mark.parametrize("form", ["dense", *tiered(["int4", "float8"], "int4")])
@pytest.mark.parametrize(
    ("capability", "size"), tiered([(c, s) for c in SHARED_BYTES for s in DENSE], (90, 4))
)
def test_products_of_experts_prefetch_without_spilling_registers(
    compile_for: Any, tmp_path: Path, form: str, capability: int, size: int
) -> None:
    """Compile for 128 experts of Qwen3-30B-A3B, `size` choices of each, and read what became of it."""
    assert list(DENSE) == list(QUANTISED)
    hidden, inner, experts = 2048, 768, 128
    choices = size * experts

    def launch() -> None:
        settings = launch_for(choices, experts, torch.bfloat16, form != "dense", False)
        tiles = torch.empty(most_tiles(choices, experts, settings.rows), 3, dtype=torch.int32)
        order = ExpertTiles(torch.empty(choices, dtype=torch.int32), tiles)
        gate_up, down = expert_weights(form, 2 * inner, hidden), expert_weights(form, hidden, inner)
        multiply(tensor(choices // 8, hidden), gate_up, order, settings, "silu")
        multiply(tensor(choices, inner), down, order, settings)

    for kernel in compile_for(capability, launch):
        assert kernel.metadata.shared <= SHARED_BYTES[capability]
        assert spilled_bytes(kernel, capability, tmp_path) <= MOST_SPILLED
        assert max(copies_in_flight(kernel)) >= 2  # the values and the weights of the next inputs
        assert "mma.sync" in kernel.asm["ptx"] or "wgmma" in kernel.asm["ptx"]


@pytest.mark.parametrize("capability", tiered(list(SHARED_BYTES), 90))
def test_choices_tiles_and_sums_of_experts_compile(compile_for: Any, tmp_path: Path, capability: int) -> None:
    def launch() -> None:
        for tokens in (1, 8192):
            plan_tiles(torch.empty(tokens, 8, dtype=torch.int64), 128, 16)
        weighted_sum(tensor(64, 2048), torch.empty(8, 8))
        choose(tensor(8, 128), 8, True, torch.bfloat16)

    for kernel in compile_for(capability, launch):
        assert kernel.metadata.shared <= MULTIPROCESSOR_BYTES
        assert spilled_bytes(kernel, capability, tmp_path) == 0
