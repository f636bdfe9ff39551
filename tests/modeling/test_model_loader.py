"""Loading of weights, and errors for weights that cannot be loaded."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tiers import tiered
from transformers import AutoModelForCausalLM

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.model_sources.folder import weight_bytes
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.loader import model_folder, model_loader, progress
from engine_server.modeling.platform import host_memory as memory
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cuda import CudaPlatform

TOKENS = [5, 77, 31, 8, 120]


def answer(model: Path, finish, **options: object) -> list[int]:
    args = EngineArgs(model=str(model), skip_tokenizer_init=True, num_gpu_blocks_override=16, **options)
    engine = LLMEngine.from_engine_args(args)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    engine.add_request("0", {"prompt_token_ids": TOKENS}, params)
    return finish(engine)["0"].outputs[0].token_ids


@pytest.mark.transformers
def test_weights_in_several_files_are_read_completely(tiny_llama: Path, tmp_path: Path, finish) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_llama).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert answer(tmp_path, finish, dtype="float32") == answer(tiny_llama, finish, dtype="float32")


@pytest.mark.more
@pytest.mark.transformers
@pytest.mark.parametrize(
    ("dtype", "agreeing"), tiered([("auto", 6), ("float16", 6), ("bfloat16", 3)], ("float16", 6))
)
def test_each_dtype_generates_like_float32(tiny_llama: Path, finish, dtype: str, agreeing: int) -> None:
    expected = answer(tiny_llama, finish, dtype="float32")
    assert answer(tiny_llama, finish, dtype=dtype)[:agreeing] == expected[:agreeing]


@pytest.mark.more
@pytest.mark.parametrize("head", tiered([False, True], True))
def test_engine_generates_with_rounded_weights(tiny_llama: Path, finish, head: bool) -> None:
    expected = answer(tiny_llama, finish, dtype="bfloat16")
    found = answer(tiny_llama, finish, dtype="bfloat16", quantization="int8", quantize_head=head)
    assert len(found) == len(expected) and found[0] == expected[0]


@pytest.mark.more
@pytest.mark.transformers
def test_dummy_weights_need_only_a_config_and_depend_on_the_seed(
    tiny_llama: Path, tmp_path: Path, finish
) -> None:
    shutil.copy(tiny_llama / "config.json", tmp_path)
    first, again, other = (answer(tmp_path, finish, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    with pytest.raises(ValueError, match=r"\*\.safetensors missing"):
        answer(tmp_path, finish)


def test_model_that_does_not_fit_is_refused_with_both_sizes(tiny_llama: Path, tmp_path: Path, finish) -> None:
    """The file is sparse: 4 TiB of weights that take no space on the disk."""
    shutil.copy(tiny_llama / "config.json", tmp_path)
    size = 1 << 42
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + size)  # a hole
    for dtype, wanted in (("auto", size >> 20), ("bfloat16", size >> 21)):
        with pytest.raises(
            ValueError, match=rf"weights: {wanted} MiB of cpu memory needed, \d+ MiB available"
        ):
            answer(tmp_path, finish, dtype=dtype)


def test_gpu_without_bfloat16_computes_in_float16_and_logs_it(monkeypatch, caplog) -> None:
    gpu, chosen = CudaPlatform(torch.device("cuda")), model_folder.choose_dtype
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    for dtype in (torch.float32, torch.float16):
        assert chosen(None, dtype, gpu) == chosen(dtype, torch.bfloat16, gpu) == dtype
    assert not caplog.messages
    assert chosen(None, torch.bfloat16, gpu) == torch.float16
    assert caplog.messages == ["an old GPU has no bfloat16: the model runs in float16"]


@pytest.mark.parametrize(
    ("instruction", "weights", "computed"),
    tiered(
        [
            ("avx2", torch.bfloat16, torch.float32),
            ("avx2", torch.float16, torch.float32),
            ("avx2", torch.float32, torch.float32),
            ("avx512_bf16", torch.bfloat16, torch.bfloat16),
            ("avx512_bf16", torch.float16, torch.float32),
            ("bf16", torch.bfloat16, torch.bfloat16),  # Arm's
            ("amx_fp16", torch.float16, torch.float16),
        ],
        ("avx2", torch.bfloat16, torch.float32),
        ("avx512_bf16", torch.bfloat16, torch.bfloat16),
    ),
)
def test_cpu_without_instructions_for_a_dtype_computes_in_float32_and_logs_it(
    tiny_llama: Path, tmp_path: Path, monkeypatch, caplog, instruction: str, weights, computed
) -> None:
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx": True, "amx_bf16": False, instruction: True}
    )
    AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=weights).save_pretrained(tmp_path)
    assert dtype_of(tmp_path, "auto") == computed
    name = str(weights).removeprefix("torch.")
    warnings = [
        f"this CPU has no instructions for {name}: the model runs in float32" in line
        for line in caplog.messages
    ]
    assert any(warnings) == (weights != computed)
    caplog.clear()
    assert dtype_of(tmp_path, name) == weights
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)


def dtype_of(model: Path, asked: str) -> torch.dtype:
    config = EngineArgs(model=str(model), dtype=asked, skip_tokenizer_init=True).create_engine_config()
    return model_loader.load_model(
        config.model_config, config.load_config, CpuPlatform(), Communicator()
    ).dtype


@pytest.mark.transformers
def test_weights_of_another_dtype_are_refused(tiny_llama: Path, tmp_path: Path, finish) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"its weights are torch\.float64; dtype can make them"):
        answer(tmp_path, finish)
    assert len(answer(tmp_path, finish, dtype="float32")) == 6


@pytest.mark.parametrize("prefix", ["", "total_"])  # version 2 of control groups, and version 1
def test_page_cache_counts_as_free_memory(tmp_path: Path, monkeypatch, prefix: str) -> None:
    (tmp_path / "limit").write_text("10000\n")
    (tmp_path / "usage").write_text("7000\n")
    (tmp_path / "memory.stat").write_text(
        f"anon 2500\n{prefix}inactive_file 3000\n{prefix}active_file 1500\n"
    )
    monkeypatch.setattr(memory, "CGROUP_FILES", [(tmp_path / "limit", tmp_path / "usage")])
    assert memory.free_host_memory() == 7500


@pytest.mark.transformers
def test_weight_bytes_follow_the_headers_of_the_files(tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert (weight_bytes(tiny_llama, None), weight_bytes(tiny_llama, 2)) == (4 * numbers, 2 * numbers)


def test_loading_logs_its_progress(tiny_llama: Path, finish, caplog, monkeypatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    with caplog.at_level("INFO", logger=progress.__name__):
        answer(tiny_llama, finish, dtype="bfloat16")
    assert "Loading weights: 20 of 21" in caplog.messages
