"""Steps launch their work without waiting for the device: nothing of a forward or a head reads it, or copies to it."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core.executor import Executor
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform

READS = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.nonzero)


class Waits(TorchFunctionMode):
    """Notes the calls that would wait for a GPU: reads of tensors, and copies of the host's data other than staged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        # Depth of calls of the platform's own copies.
        self.staged = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        copies = func is torch.tensor and kwargs.get("device") is not None
        index = args[1] if func is torch.Tensor.__getitem__ else None
        by_host = isinstance(index, list) or (isinstance(index, torch.Tensor) and index.dtype == torch.bool)
        if not self.staged and (func in READS or copies or by_host):
            caller = traceback.extract_stack(limit=2)[0]
            self.found.append(f"{func.__name__} in {Path(caller.filename).name}, {caller.name}")
        return func(*args, **kwargs)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Watch every forward and head of engines in this process."""
    waits = Waits()

    def watched(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            with waits:
                return original(self, *args)

        monkeypatch.setattr(owner, name, call)

    def staged(owner: type) -> None:
        original = owner.to_device

        def call(self: Any, *args: Any) -> Any:
            waits.staged += 1
            try:
                return original(self, *args)
            finally:
                waits.staged -= 1

        monkeypatch.setattr(owner, "to_device", call)

    staged(CpuPlatform)
    watched(Executor, "forward")
    watched(Executor, "head")
    return waits


def test_steps_with_masks_and_logprobs_wait_for_nothing(waits: Waits, tiny_llama: Path, finish: Any) -> None:
    assert NativePlatform.to_device is CpuPlatform.to_device
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=8, enforce_eager=True,
        )
    )  # fmt: skip
    requests = {
        "plain": {},
        "mask of some rows": {"min_tokens": 4},
        "log-probabilities": {"logprobs": 3},
        "those of the prompt": {"prompt_logprobs": 2},
    }
    for number, (name, options) in enumerate(requests.items()):
        params = SamplingParams(temperature=0, max_tokens=5, detokenize=False, **options)
        engine.add_request(name, {"prompt_token_ids": [5 + number, 6, 7, 8, 9]}, params)
    assert finish(engine).keys() == requests.keys()
    assert sorted(set(waits.found)) == []


def test_calls_that_wait_are_noticed(waits: Waits) -> None:
    values = torch.arange(4)
    with waits:
        values.tolist()
        values[values > 2]
        values[[0, 1]]
        torch.tensor([1], device="cpu")
    assert len(waits.found) == 4
