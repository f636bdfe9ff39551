"""A device that has too little memory, or fails: who ends, and who lives on."""

import os
import weakref
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import torch

from engine_server import AsyncEngineArgs, AsyncLLMEngine, EngineArgs, EngineDeadError, LLMEngine
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ForwardOutput, ModelRunner
from engine_server.core.scheduling.scheduler import MOST_RETRIES

PROMPTS = [[place * 7 % 120 + 3 for place in range(length)] for length in (90, 40, 40, 3)]


class SmallRunner(ModelRunner):
    """A device with memory for some tokens a step; the largest tensor of a step that fails is held by its frames."""

    most = 1000
    sizes: ClassVar[list[int]] = []
    held: ClassVar[list[weakref.ref]] = []

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        size = len(inputs.step.token_ids)
        self.sizes.append(size)
        output = super().forward(inputs)
        if size > self.most:
            self.held.append(weakref.ref(output.rows))
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} GiB.")
        return output


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"])
def small(request, tiny_llama: Path, monkeypatch) -> LLMEngine:
    monkeypatch.setattr(SmallRunner, "sizes", [])
    monkeypatch.setattr(SmallRunner, "held", [])
    config = EngineArgs(
        model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
        max_num_batched_tokens=128, async_scheduling=request.param,
    ).create_engine_config()  # fmt: skip
    return LLMEngine(**msgspec.structs.asdict(config), executor_class=SmallRunner, log_stats=False)


def ask(engine: LLMEngine, params) -> None:
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(number, {"prompt_token_ids": prompt}, params)


def test_a_batch_without_room_is_computed_again_in_smaller_steps(
    small: LLMEngine, tiny_params, finish, monkeypatch
) -> None:
    params = tiny_params(temperature=0, max_tokens=12, ignore_eos=True)
    ask(small, params)
    expected = {name: output.outputs[0].token_ids for name, output in finish(small).items()}
    small.reset_prefix_cache()
    SmallRunner.sizes.clear()
    left = []  # tensors of a step that failed, when memory is given back
    monkeypatch.setattr(
        torch.cuda,
        "empty_cache",
        lambda: left.append([one() for one in SmallRunner.held if one() is not None]),
    )
    monkeypatch.setattr(SmallRunner, "most", 40)
    ask(small, params)
    assert {name: output.outputs[0].token_ids for name, output in finish(small).items()} == expected
    failed = [size for size in SmallRunner.sizes if size > 40]
    assert SmallRunner.sizes[:3] == [
        109,
        55,
        28,
    ]  # half, and a token more; beginnings that are equal come once
    assert len(failed) == 2
    assert left == [[], []]
    small._core.scheduler.check_integrity()
    assert small._core.table.pool.usage == 0


def test_what_finds_no_room_however_small_fails_alone(
    small: LLMEngine, tiny_params, finish, monkeypatch
) -> None:
    monkeypatch.setattr(SmallRunner, "most", 0)
    params = tiny_params(temperature=0, max_tokens=3, ignore_eos=True)
    ask(small, params)
    ended = {name: output.outputs[0] for name, output in finish(small).items()}
    assert {output.finish_reason for output in ended.values()} == {"error"}
    assert "CUDA out of memory. Tried" in ended["0"].stop_reason
    assert len(SmallRunner.sizes) >= MOST_RETRIES + 1
    monkeypatch.undo()
    small.add_request("next", {"prompt_token_ids": PROMPTS[0]}, params)
    assert finish(small)["next"].outputs[0].finish_reason == "length"
    small._core.scheduler.check_integrity()


LOST = """
import atexit, time, torch
from engine_server.core.model_runner import ModelRunner

class LostRunner(ModelRunner):
    def forward(self, inputs):
        atexit.register(time.sleep, 1000)  # as what frees a lost device's memory might
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
"""


async def test_an_engine_ends_with_its_device(
    tiny_llama: Path, tiny_params, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from lost import LostRunner

    config = AsyncEngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16
    ).create_engine_config()
    engine = AsyncLLMEngine(config, LostRunner, log_stats=False)
    with pytest.raises(EngineDeadError, match="AcceleratorError: CUDA error: an illegal memory access"):
        async for _ in engine.generate({"prompt_token_ids": [5]}, tiny_params(), "0"):
            pass
    assert engine._core._child.process.wait(timeout=60) == 1
