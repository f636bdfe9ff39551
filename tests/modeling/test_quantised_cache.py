"""A KV cache in float8 or int8: half the bytes, and nearly the same numbers."""

from pathlib import Path

import pytest
import torch
from tiers import tiered

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.cache import kv_cache
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.quantised import FLOAT8, INT8, quantised
from engine_server.modeling.cache.spec import LayerShape
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cuda import CudaPlatform

pytestmark = pytest.mark.usefixtures("shared_trials")

PROMPT = [place * 7 % 120 + 3 for place in range(100)]


def make(model: Path, cache_dtype: str, **options: object) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), skip_tokenizer_init=True, max_num_batched_tokens=16, disable_log_stats=True,
            kv_cache_dtype=cache_dtype, **options,
        )
    )  # fmt: skip


@pytest.mark.parametrize("quantised_dtype", tiered(["fp8", "int8"], "fp8", more=["int8"]))
def test_logprobs_with_a_quantised_cache_are_close_to_those_without(
    tiny_llama: Path, finish, tiny_params, quantised_dtype: str
) -> None:
    """The prompt runs in chunks, so that most of it is read from the cache."""
    logprobs_by_cache = []
    for cache_dtype in ("auto", quantised_dtype):
        engine = make(tiny_llama, cache_dtype, dtype="float32", num_gpu_blocks_override=20)
        engine.add_request("0", {"prompt_token_ids": PROMPT}, tiny_params(prompt_logprobs=0, max_tokens=1))
        logprobs = finish(engine)["0"].prompt_logprobs
        logprobs_by_cache.append(
            torch.tensor([logprobs[at][PROMPT[at]].logprob for at in range(1, len(PROMPT))])
        )
    assert 0 < (logprobs_by_cache[0] - logprobs_by_cache[1]).std() < logprobs_by_cache[0].std() / 5


def test_float8_cache_has_about_twice_as_many_blocks(tiny_llama: Path) -> None:
    heads = lay_out([LayerShape(kv_heads=8, key_dim=128, value_dim=128)], 64)
    assert heads.unit_bytes(16, torch.bfloat16) == [16 * 8 * 2 * 128 * 2]
    assert heads.unit_bytes(16, FLOAT8) == [16 * 8 * 2 * (128 + 4)]  # a scale has 4 bytes
    blocks = {
        cache_dtype: make(tiny_llama, cache_dtype, dtype="bfloat16", kv_cache_memory_bytes=1 << 16)
        .config.cache_config.num_gpu_blocks
        for cache_dtype in ("auto", "fp8_e4m3")
    }  # fmt: skip
    assert blocks == {
        "auto": (1 << 16) // 2048,
        "fp8_e4m3": (1 << 16) // (1024 + 512),
    }  # heads of 8, in 2 layers


def test_int8_rows_of_any_magnitude_keep_seven_bits() -> None:
    given = torch.randn(200, 64) * torch.logspace(-20, 20, 200)[:, None]
    data, scales = quantised(given, INT8)
    assert ((data * scales - given).abs() <= scales * 0.5001).all() and data.abs().amax(1).eq(127).all()


def test_erasing_a_block_erases_its_scales() -> None:
    layout = lay_out([LayerShape(kv_heads=2, key_dim=8, value_dim=4)], 64)
    backend = TorchAttention(layout, [3], 16, FLOAT8, CpuPlatform())
    for cache in backend.caches:
        cache.fill_(torch.nan)
    backend.erase([[1]])
    assert len(backend.caches) == 4
    assert all(
        torch.equal(cache.float().isnan().flatten(1).all(1), torch.tensor([1, 0, 1]).bool())
        for cache in backend.caches
    )


def test_quantised_rows_of_any_magnitude_keep_three_bits() -> None:
    given = torch.randn(200, 64) * torch.logspace(-20, 20, 200)[:, None]
    data, scales = quantised(given.index_fill(0, torch.tensor([7]), 0))
    back = data.float() * scales
    assert torch.equal(back[7], torch.zeros(64))
    largest = given.abs().amax(1, keepdim=True)
    assert ((back - given).abs() <= given.abs() / 16 + largest / 448 / 512)[[*range(7), *range(8, 200)]].all()


def test_float8_cache_is_refused_on_a_gpu_that_cannot_convert_it(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    config = EngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, kv_cache_dtype="fp8"
    ).create_engine_config()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an A100")
    gpu = CudaPlatform(torch.device("cuda"))
    for capability, allowed in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        if allowed:
            assert kv_cache.cache_dtype(config.cache_config, torch.bfloat16, gpu) == FLOAT8
            continue
        with pytest.raises(ValueError, match="kv_cache_dtype is fp8, which an A100 doesn't support"):
            kv_cache.cache_dtype(config.cache_config, torch.bfloat16, gpu)


def test_int8_cache_is_refused_on_a_gpu(tiny_llama: Path) -> None:
    config = EngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, kv_cache_dtype="int8"
    ).create_engine_config()
    with pytest.raises(ValueError, match="kv_cache_dtype is int8, which needs a CPU"):
        kv_cache.cache_dtype(config.cache_config, torch.bfloat16, CudaPlatform(torch.device("cuda")))
