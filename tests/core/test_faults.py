"""Faults of the device, out of memory or failure: the requests that end, and those that continue."""

import os
import weakref
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import torch
from tiers import tiered

from engine_server import AsyncEngineArgs, AsyncLLMEngine, EngineArgs, EngineDeadError, LLMEngine
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ModelRunner
from engine_server.core.scheduling.scheduler import MOST_RETRIES
from engine_server.modeling.platform.cpu import CpuPlatform

PROMPTS = [[place * 7 % 120 + 3 for place in range(length)] for length in (90, 40, 40, 3)]


class SmallRunner(ModelRunner):
    """A runner with memory for `most` tokens per step. A failed step's frames hold its tensors."""

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


@pytest.fixture(
    params=tiered(
        [False, True], True, more=[False], ids=lambda overlapped: "overlapped" if overlapped else "plain"
    )
)
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


def test_step_that_runs_out_of_memory_is_retried_in_smaller_steps(
    small: LLMEngine, tiny_params, finish, monkeypatch
) -> None:
    params = tiny_params(temperature=0, max_tokens=12, ignore_eos=True)
    ask(small, params)
    expected = {name: output.outputs[0].token_ids for name, output in finish(small).items()}
    small.reset_prefix_cache()
    SmallRunner.sizes.clear()
    left = []  # tensors of a failed step that are alive when memory is released
    monkeypatch.setattr(
        CpuPlatform,
        "release_cached_memory",
        lambda self: left.append([one() for one in SmallRunner.held if one() is not None]),
    )
    monkeypatch.setattr(SmallRunner, "most", 40)
    ask(small, params)
    assert {name: output.outputs[0].token_ids for name, output in finish(small).items()} == expected
    failed = [size for size in SmallRunner.sizes if size > 40]
    assert SmallRunner.sizes[:3] == [
        109,
        55,
        28,
    ]  # half, plus a token per step; repeated sizes are listed once
    assert len(failed) == 2
    assert left == [[], []]
    small.check_integrity()
    assert small.debug_state().scheduler.num_used_blocks == 0


def test_request_that_no_step_size_fits_ends_with_an_error(
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
    small.check_integrity()


def test_request_survives_any_number_of_failed_steps_between_its_tokens(
    small: LLMEngine, tiny_params, finish, monkeypatch
) -> None:
    """Retries are counted since the last token, so that occasional memory shortages end no request."""
    params = tiny_params(temperature=0, max_tokens=2 * MOST_RETRIES, ignore_eos=True)
    small.add_request("long", {"prompt_token_ids": PROMPTS[1]}, params)
    forward, failures = SmallRunner.forward, []

    def failing_before_each_token(self: SmallRunner, inputs: ModelInputs) -> ForwardOutput:
        output = forward(self, inputs)
        [request] = small.debug_state().requests
        tokens = request.num_output - len(inputs.sampling)  # without the placeholder of this step's token
        if tokens not in failures:
            failures.append(tokens)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return output

    monkeypatch.setattr(SmallRunner, "forward", failing_before_each_token)
    output = finish(small)["long"].outputs[0]
    assert (output.finish_reason, len(output.token_ids)) == ("length", 2 * MOST_RETRIES)
    assert len(failures) > MOST_RETRIES


LOST = """
import atexit, time, torch
from engine_server.core.model_runner import ModelRunner

class LostRunner(ModelRunner):
    def forward(self, inputs):
        atexit.register(time.sleep, 1000)  # simulates an exit handler that hangs freeing a lost device's memory
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
"""


async def test_engine_ends_when_its_device_fails(
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
    with pytest.raises(EngineDeadError, match="ended with status 1"):
        await engine.check_health()
