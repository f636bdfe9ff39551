"""GPU memory that the engine allocates and returns."""

import gc
from pathlib import Path

import pytest
import torch
from encoder_memory import internvl_of_tiles, taken

from engine_server import EngineArgs, LLMEngine, SamplingParams

MIB = 1 << 20
CACHE = 512 * MIB
WEIGHTS = 300 * MIB  # a little less than they take
SLACK = 64 * MIB  # memory that libraries keep, and fragmentation
PROMPT = {"prompt_token_ids": [place * 7 % 1000 + 3 for place in range(100)]}


def make(model: Path, **options: object) -> LLMEngine:
    free()  # an engine of another test, whose memory would otherwise be reused in part and stay reserved as a whole
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            kernels="triton",
            disable_log_stats=True,
            **options,
        )
    )


def answer(engine: LLMEngine) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    engine.add_request("0", PROMPT, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0].outputs[0].token_ids


def free() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("cache_dtype", ["auto", "fp8"])
def test_sleep_returns_memory_to_the_device(
    gpu: torch.device, llama: Path, level: int, cache_dtype: str
) -> None:
    engine = make(llama, kv_cache_memory_bytes=CACHE, kv_cache_dtype=cache_dtype)
    before, awake = answer(engine), free()
    engine.sleep(level)
    asleep = free()
    assert asleep - awake > CACHE + WEIGHTS - SLACK
    engine.wake_up(["weights"])
    assert asleep - free() > WEIGHTS - SLACK
    assert engine.is_sleeping()
    engine.wake_up(["kv_cache"])
    assert answer(engine) == before
    assert abs(free() - awake) < SLACK


def test_kv_cache_fills_the_requested_share_of_memory(gpu: torch.device, llama: Path) -> None:
    before, (_, total) = free(), torch.cuda.mem_get_info()
    share = (total - before + total // 8) / total  # the memory in use, plus an eighth
    engine = make(llama, gpu_memory_utilization=share)
    answer(engine)
    used = 1 - torch.cuda.mem_get_info()[0] / total
    assert share - 0.03 < used < share + 0.01


def test_out_of_memory_error_names_the_stage_that_does_not_fit(gpu: torch.device, llama: Path) -> None:
    sizes = r"at least \d+ MiB of cuda memory needed, \d+ MiB available"
    with pytest.raises(ValueError, match=rf"KV cache: {sizes}\. .* Tried to allocate .* Lower gpu_mem"):
        make(llama, num_gpu_blocks_override=1 << 20)
    with pytest.raises(ValueError, match=r"one request of max_model_len 4096 needs .* raise gpu_memory_util"):
        make(llama, gpu_memory_utilization=0.001)
    answer(make(llama, kv_cache_memory_bytes=CACHE))  # neither failed start keeps memory


def test_memory_in_which_the_largest_picture_is_encoded_is_reserved(
    gpu: torch.device, tmp_path: Path
) -> None:
    folder = internvl_of_tiles(49, tmp_path)  # as many as a square has
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), skip_tokenizer_init=True, kv_cache_memory_bytes=CACHE, disable_log_stats=True
        )
    )
    reserved = engine.config.device_config.memory_bytes["largest_picture"]
    largest = max(taken(engine._core.executor.first.loaded, folder))
    assert 0 < largest <= reserved < 1.1 * largest
