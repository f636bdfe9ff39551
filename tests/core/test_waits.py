"""Steps launch their work without waiting for the device: nothing of a forward or a head reads it, or copies to it."""

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_references import random_model
from architectures import ARCHITECTURES
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
        # Depth of calls of the platform's own copies, and what they have returned.
        self.staged = 0
        self.copies: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        copies = func is torch.tensor and kwargs.get("device") is not None
        index = args[1] if func is torch.Tensor.__getitem__ else None
        by_host = isinstance(index, list) or (isinstance(index, torch.Tensor) and index.dtype == torch.bool)
        written = args[2] if func is torch.Tensor.__setitem__ else None
        copies |= isinstance(written, torch.Tensor) and all(written is not copy for copy in self.copies)
        caller = traceback.extract_stack(limit=2)[0]
        moves = func is torch.Tensor.to and any(isinstance(one, torch.device) for one in args)
        # Attention in plain torch serves where there are no kernels; it may wait.
        copies |= moves and "engine_server" in caller.filename and "torch_backend" not in caller.filename
        if not self.staged and (func in READS or copies or by_host):
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
                waits.copies.append(original(self, *args))
            finally:
                waits.staged -= 1
            return waits.copies[-1]

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


def test_steps_with_embeddings_wait_for_nothing(waits: Waits, tiny_llama: Path, finish: Any) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=8, enforce_eager=True, enable_prompt_embeds=True,
        )
    )  # fmt: skip
    size = json.loads((tiny_llama / "config.json").read_text())["hidden_size"]
    params = SamplingParams(temperature=0, max_tokens=3, detokenize=False)
    engine.add_request("0", {"prompt_embeds": torch.randn(12, size)}, params)
    assert finish(engine).keys() == {"0"}
    assert sorted(set(waits.found)) == []


@pytest.mark.more
def test_steps_with_a_stretched_rope_copy_nothing_that_waits(
    waits: Waits, tmp_path: Path, finish: Any
) -> None:
    """transformers' rope itself reads the longest position from the device, which is not noted here."""
    architecture = next(one for one in ARCHITECTURES if one.name == "phi 3")
    random_model(architecture, tmp_path)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=8, enforce_eager=True, max_model_len=48,
        )
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
    engine.add_request("0", {"prompt_token_ids": [5, 6, 7, 8, 9]}, params)
    assert finish(engine).keys() == {"0"}
    assert sorted(set(waits.found)) == []


def test_calls_that_wait_are_noticed(waits: Waits) -> None:
    values = torch.arange(4)
    with waits:
        values.tolist()
        values[values > 2]
        values[[0, 1]]
        torch.tensor([1], device="cpu")
        values[1:3] = values[:2].clone()
    assert len(waits.found) == 5
