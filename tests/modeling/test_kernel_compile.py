"""Compilation of the kernels for a GPU, which the interpreter doesn't check."""

import math
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiers import tiered

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import FLOAT8
from engine_server.modeling.heads.pending import PendingRotation
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from engine_server.modeling.formats.low_rank import LowRankTable  # noqa: E402
from engine_server.modeling.kernels import dependent_launch, dequantise, launch, quantized_matmul  # noqa: E402
from engine_server.modeling.kernels.activation import gated  # noqa: E402
from engine_server.modeling.kernels.attention import decode, prefill  # noqa: E402
from engine_server.modeling.kernels.cache_write import write_cache  # noqa: E402
from engine_server.modeling.kernels.codes import FLOAT4, QuantizedWeight  # noqa: E402
from engine_server.modeling.kernels.codes import FLOAT8 as FLOAT8_BITS  # noqa: E402
from engine_server.modeling.kernels.expert_launch import DENSE, QUANTISED, launch_for  # noqa: E402
from engine_server.modeling.kernels.expert_products import ExpertWeights, multiply  # noqa: E402
from engine_server.modeling.kernels.expert_sum import weighted_sum  # noqa: E402
from engine_server.modeling.kernels.expert_tiles import ExpertTiles, most_tiles, plan_tiles  # noqa: E402
from engine_server.modeling.kernels.head_write import write_heads  # noqa: E402
from engine_server.modeling.kernels.low_rank import add_low_rank  # noqa: E402
from engine_server.modeling.kernels.matmul import linear  # noqa: E402
from engine_server.modeling.kernels.norm import rms_norm  # noqa: E402
from engine_server.modeling.kernels.rotary import rotate  # noqa: E402
from engine_server.modeling.kernels.router import choose  # noqa: E402
from engine_server.modeling.kernels.sampling import sample  # noqa: E402
from engine_server.modeling.kernels.work_list import plan_work  # noqa: E402

MULTIPROCESSOR_BYTES = 99 << 10  # of shared memory, on the smallest GPUs with bfloat16
# Of registers, where float8 is converted on compute capability 8.9.
MOST_SPILLED = 8
# Of a thread that decodes over a float8 cache: three programs of four warps fit on a multiprocessor.
MOST_FLOAT8_REGISTERS = 168
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


def assembled(kernel: Any, capability: int, folder: Path) -> str:
    """Return the report of NVIDIA's assembler."""
    ptx = folder / "kernel.ptx"
    ptx.write_text(kernel.asm["ptx"])
    name = f"sm_{capability}" + "a" * (capability >= 90)
    command = [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={name}", str(ptx), "-o", os.devnull]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def spilled_bytes(kernel: Any, capability: int, folder: Path) -> int:
    """Return the bytes of registers that NVIDIA's assembler spills to memory."""
    report = assembled(kernel, capability, folder)
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", report)))


def used_registers(kernel: Any, capability: int, folder: Path) -> int:
    """Return the registers of a thread."""
    return sum(map(int, re.findall(r"Used (\d+) registers", assembled(kernel, capability, folder))))


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
    work = plan_work(sequences, window=Window(20), kv_heads=8, spare=4)
    decode(
        out,
        query,
        float8,
        float8,
        table,
        sequences,
        Scoring(0.1, Window(20), 5.0, tensor(32), tensor(32)),
        work,
    )
    _write, quantise, fill, _plan, part = compiled
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


class Norm(NamedTuple):
    weight: torch.Tensor
    eps: float = 1e-6
    offset: float = 0.0

    def add(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


def write_heads_of(heads: int, norms: tuple[Norm, ...], pages: Pages) -> None:
    """Write eight tokens' heads of 128 dims, 8 of them of K and of V, as one product computes them."""
    sizes = [heads * 128, 1024, 1024]
    query, key, value = (part.unflatten(1, (-1, 128)) for part in tensor(8, sum(sizes)).split(sizes, 1))
    rotation = PendingRotation(rotate, tensor(8, 128)[:, :64], tensor(8, 128)[:, :64], False)
    write_heads(pages, pages, query, key, value, tensor(8, dtype=torch.int32), rotation, *norms)


@pytest.mark.thorough
@pytest.mark.parametrize("capability", list(SHARED_BYTES))
def test_heads_are_written_without_spilled_registers(
    compile_for: Any, tmp_path: Path, capability: int
) -> None:
    """Compile for Llama 3 8B and, with norms of heads, for Qwen 3 0.6B, and for a float8 cache where it can be."""
    norms = (Norm(tensor(128)), Norm(tensor(128)))
    caches = [Pages(tensor(3, 16, 8, 128))]
    if capability >= 89:
        caches.append(Pages(tensor(3, 16, 8, 128, dtype=FLOAT8), tensor(3, 16, 8, 1, dtype=torch.float32)))
    for pages in caches:
        kernels = [
            *compile_for(capability, lambda pages=pages: write_heads_of(32, (), pages)),
            *compile_for(capability, lambda pages=pages: write_heads_of(16, norms, pages)),
        ]
        assert len(kernels) == 2
        assert [spilled_bytes(kernel, capability, tmp_path) for kernel in kernels] == [0, 0]


@pytest.mark.parametrize(
    ("enabled", "capability"),
    tiered([(True, 90), (True, 89), (False, 90)], (True, 90), more=[(True, 89), (False, 90)]),
)
def test_kernel_of_a_dependent_launch_waits_before_it_reads(
    compile_for: Any, monkeypatch: pytest.MonkeyPatch, enabled: bool, capability: int
) -> None:
    monkeypatch.setattr(dependent_launch, "ENABLED", enabled)

    def launch_all() -> None:
        rms_norm(tensor(1, 8, 1024), tensor(1024), 1e-5, residual=tensor(1, 8, 1024))
        gated("silu", tensor(1, 8, 6144))
        write_heads_of(16, (Norm(tensor(128)), Norm(tensor(128))), Pages(tensor(3, 16, 8, 128)))

    kernels = compile_for(capability, launch_all)
    assert len(kernels) == 3
    for kernel in kernels:
        early, code = enabled and capability == 90, kernel.asm["ptx"]
        assert kernel.metadata.launch_pdl == early
        if early:
            reads = [place for name in ("ld.global", "st.global") if (place := code.find(name)) >= 0]
            assert 0 < code.index("griddepcontrol.wait") < min(reads)
        else:
            assert "griddepcontrol" not in code


@pytest.mark.thorough
@pytest.mark.parametrize(("capability", "dim"), [(c, d) for c in SHARED_BYTES for d in launch.PREFILL])
def test_attention_copies_the_next_keys_and_values_while_it_computes(
    compile_for: Any, tmp_path: Path, capability: int, dim: int
) -> None:
    """Compile for 32 query heads of 8 KV heads, in bfloat16, and read what Triton and NVIDIA's assembler made of it."""
    pages, query, out = Pages(tensor(3, 16, 8, dim)), tensor(8, 32, dim), tensor(8, 32, dim)
    sequences, table = torch.empty(2, 4, dtype=torch.int32), torch.empty(2, 3, dtype=torch.int32)
    given, scoring = (out, query, pages, pages, table, sequences), Scoring(0.1)
    (fill,) = compile_for(capability, lambda: prefill(*given, scoring))
    _plan, part = compile_for(
        capability, lambda: decode(*given, scoring, plan_work(sequences, window=None, kv_heads=8, spare=4))
    )
    for kernel in (fill, part):
        assert kernel.metadata.shared <= SHARED_BYTES[capability]
        assert spilled_bytes(kernel, capability, tmp_path) == 0
        # One copy each of K and V is under way, and those of the block table before them.
        assert max(copies_in_flight(kernel)) >= 3


FLOAT8_CASES = [
    (capability, heads, dim)
    for capability in SHARED_BYTES
    if capability >= 89
    for heads, dim in ((32, 64), (32, 128), (16, 128), (16, 256))
]


@pytest.mark.thorough
@pytest.mark.parametrize(("capability", "heads", "dim"), FLOAT8_CASES)
def test_decode_over_a_float8_cache_leaves_registers_for_several_programs(
    compile_for: Any, tmp_path: Path, capability: int, heads: int, dim: int
) -> None:
    pages = Pages(tensor(3, 16, 8, dim, dtype=FLOAT8), tensor(3, 16, 8, 1, dtype=torch.float32))
    query, out = tensor(8, heads, dim), tensor(8, heads, dim)
    sequences, table = torch.empty(2, 4, dtype=torch.int32), torch.empty(2, 3, dtype=torch.int32)

    def launch_decode() -> None:
        work = plan_work(sequences, window=None, kv_heads=8, spare=4)
        decode(out, query, pages, pages, table, sequences, Scoring(0.1), work)

    _plan, part = compile_for(capability, launch_decode)
    assert used_registers(part, capability, tmp_path) <= MOST_FLOAT8_REGISTERS
    assert spilled_bytes(part, capability, tmp_path) == 0
    assert max(copies_in_flight(part)) >= 3


@pytest.mark.thorough
def test_sampling_kernels_compile_for_hopper(compiled: list) -> None:
    """Compile for the vocabularies of GPT-2, whose rows are not aligned, and of Gemma 3."""
    for logits in (tensor(2, 50257), tensor(2, 262144, dtype=torch.float32)):
        sample(logits, torch.zeros(2, 8, dtype=torch.int32))
    assert len(compiled) == 4
    assert all(kernel.metadata.shared <= MULTIPROCESSOR_BYTES for kernel in compiled)


def bytes_for(*shape: int) -> torch.Tensor:
    return tensor(*shape, dtype=torch.uint8)


def quantised_products(rows: int, inputs: int, outputs: int) -> list[Callable[[], torch.Tensor]]:
    """Return the products of values with weights in every format."""
    x = tensor(rows, inputs)
    four_bits = tensor(outputs, inputs // 2, dtype=torch.uint8)
    eight_bits = tensor(outputs, inputs, dtype=torch.uint8)
    scales = tensor(outputs, inputs // 128, dtype=torch.float16)
    per_output = tensor(outputs, 1, dtype=torch.float32)
    weights = (
        QuantizedWeight(four_bits, scales, None, None, 4, 128),
        QuantizedWeight(four_bits, scales, scales, tensor(outputs), 4, 128),
        QuantizedWeight(eight_bits, tensor(outputs, inputs // 32), None, None, 8, 32),
        QuantizedWeight(eight_bits, per_output, None, None, FLOAT8_BITS.value, inputs),
        QuantizedWeight(four_bits, bytes_for(outputs, inputs // 32), None, None, FLOAT4.value, 32),
        QuantizedWeight(
            four_bits, bytes_for(outputs, inputs // 16), None, None, FLOAT4.value, 16, per_output
        ),
    )
    return [partial(quantized_matmul.multiply, x, weight) for weight in weights]


@pytest.mark.thorough
@pytest.mark.parametrize(("capability", "rows"), [(c, r) for c in SHARED_BYTES for r in (1, 16, 64, 200)])
def test_products_with_quantised_weights_keep_to_registers(
    compile_for: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: int, rows: int
) -> None:
    """Compile for a projection of Llama 3 8B, in decode and for prompts, in every format."""
    monkeypatch.setattr(quantized_matmul, "processors", lambda device: 132)
    monkeypatch.setattr(dequantise.torch, "mm", lambda *given, out: out)
    monkeypatch.setattr(dequantise.torch, "addmm", lambda *given, out: out)
    for product in quantised_products(rows, 4096, 1024):
        kernels = compile_for(capability, product)
        names = [kernel.name for kernel in kernels]
        if rows == 1:
            assert names == ["_multiply_row"]
        elif rows == 200:
            assert names == ["_dequantise"]
        else:
            assert names == ["_multiply_tile", "_add_parts"]
            assert "mma.sync" in kernels[0].asm["ptx"] or "wgmma" in kernels[0].asm["ptx"]
        for kernel in kernels:
            assert spilled_bytes(kernel, capability, tmp_path) == 0
            assert kernel.metadata.shared <= MULTIPROCESSOR_BYTES


@pytest.mark.thorough
def test_products_in_float32_with_quantised_weights_compile_for_hopper(compiled: list) -> None:
    eight_bits, per_output = tensor(1024, 4096, dtype=torch.uint8), tensor(1024, 1, dtype=torch.float32)
    weight = QuantizedWeight(eight_bits, per_output, None, None, 8, 4096)
    quantized_matmul.multiply(tensor(64, 4096, dtype=torch.float32), weight)
    assert compiled[0].metadata.shared <= MULTIPROCESSOR_BYTES


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_programs_of_quantised_products_fill_an_h100(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    processors, programs = 132, []
    monkeypatch.setattr(quantized_matmul, "processors", lambda device: processors)

    def count(self, *arguments, grid, warmup, **options) -> None:
        programs.append((self.fn.__name__, math.prod(grid)))

    monkeypatch.setattr(JITFunction, "run", count)
    for product in quantised_products(rows, 4096, 4096):
        programs.clear()
        product()
        name, number = programs[0]
        assert name in ("_multiply_row", "_multiply_tile")
        assert number >= processors


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
        case "mxfp4":
            codes, exponents = bytes_for(rows, inputs // 2), bytes_for(rows, inputs // 32)
            return ExpertWeights(codes, outputs, None, exponents, None, FLOAT4.value, 32)
        case "nvfp4":
            codes, own_scales = bytes_for(rows, inputs // 2), bytes_for(rows, inputs // 16)
            factors = tensor(rows, 1, dtype=torch.float32)
            return ExpertWeights(codes, outputs, None, own_scales, None, FLOAT4.value, 16, factors)
        case _:
            return ExpertWeights(tensor(rows, inputs), outputs)


@pytest.mark.more
@pytest.mark.parametrize(
    "form", tiered(["dense", "int4", "float8", "mxfp4", "nvfp4"], "dense", more=["int4", "mxfp4"])
)
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


@pytest.mark.thorough
@pytest.mark.parametrize("capability", list(SHARED_BYTES))
def test_choices_tiles_and_sums_of_experts_compile(compile_for: Any, tmp_path: Path, capability: int) -> None:
    def launch() -> None:
        for tokens in (1, 8192):
            plan_tiles(torch.empty(tokens, 8, dtype=torch.int64), 128, 16)
        weighted_sum(tensor(64, 2048), torch.empty(8, 8))
        choose(tensor(8, 128), 8, True, torch.bfloat16)

    for kernel in compile_for(capability, launch):
        assert kernel.metadata.shared <= MULTIPROCESSOR_BYTES
        assert spilled_bytes(kernel, capability, tmp_path) == 0
