"""Adapters of the stacked weights of experts: greedy output equals that of PEFT's model, also in mixed batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_references import (
    DOWN,
    MIXTURES,
    ROUTED,
    Reference,
    check_outputs,
    random_model,
    refer_all_linear,
    refer_experts,
)
from adapters import save_lora
from architectures import Architecture
from native_kernels import needs_kernels
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, LoRARequest
from engine_server.core import model_runner
from engine_server.modeling.layers.adapted_router import AdaptedRouter
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.interface import Platform


class GroupingPlatform(CpuPlatform):
    """A CPU in plain torch that groups the tokens of experts, and overlaps steps, as a GPU does."""

    asynchronous = True


class CapturingPlatform(NativePlatform):
    """A CPU that groups the tokens of experts in captured steps too."""

    asynchronous = True


QWEN3 = next(one for one in MIXTURES if one.name == "qwen3-moe")


@pytest.fixture(scope="module", params=tiered(MIXTURES, QWEN3, ids=lambda architecture: architecture.name))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return refer_experts(request.param, tmp_path_factory.mktemp("mixture"))


@pytest.mark.transformers
@pytest.mark.parametrize(
    "eager", tiered([False, True], False, ids=lambda eager: "eager" if eager else "captured")
)
def test_routed_experts_give_pefts_output(reference: Reference, finish, eager: bool) -> None:
    check_outputs(reference, finish, enable_lora=True, max_loras=3, enforce_eager=eager)


@pytest.mark.more
@pytest.mark.parametrize("platform", [GroupingPlatform, pytest.param(CapturingPlatform, marks=needs_kernels)])
def test_grouped_experts_give_pefts_output(
    reference: Reference, finish, platform: type[Platform], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three adapters two have a slot at a time."""
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: platform(torch.device("cpu")))
    check_outputs(reference, finish, enable_lora=True, max_loras=2, max_cpu_loras=3)


@pytest.fixture(scope="module", params=tiered(ROUTED, QWEN3, ids=lambda architecture: architecture.name))
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return refer_all_linear(request.param, tmp_path_factory.mktemp("routed"))


@pytest.mark.transformers
@pytest.mark.parametrize(
    "platform",
    [
        None,
        pytest.param(GroupingPlatform, marks=pytest.mark.more),
        pytest.param(CapturingPlatform, marks=[needs_kernels, pytest.mark.more]),
    ],
)
def test_adapters_of_all_linear_layers_and_the_router_give_pefts_output(
    routed: Reference, finish, platform: type[Platform] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platform is not None:
        monkeypatch.setattr(model_runner, "choose_platform", lambda *_: platform(torch.device("cpu")))
    check_outputs(routed, finish, enable_lora=True, max_loras=2)


@needs_kernels
def test_routers_with_adapters_are_captured(routed: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: NativePlatform(torch.device("cpu")))
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(routed.base), dtype="float32", skip_tokenizer_init=True, max_model_len=48,
            num_gpu_blocks_override=8, enable_lora=True,
        )
    )  # fmt: skip

    runner = engine._core.executor.first
    assert runner._captured._graphs.keys() == {False, True}
    assert any(isinstance(module, AdaptedRouter) for module in runner.model.modules())


@pytest.mark.thorough
@pytest.mark.parametrize("refer", [refer_experts, refer_all_linear])
def test_experts_and_routers_of_two_ranks_give_pefts_output(
    tmp_path: Path, finish, refer: Callable[[Architecture, Path], Reference]
) -> None:
    options: dict[str, Any] = {"tensor_parallel_size": 2, "device": "cpu"}
    check_outputs(refer(QWEN3, tmp_path), finish, enable_lora=True, max_loras=3, **options)


def test_adapter_of_other_experts_is_refused(tmp_path: Path) -> None:
    random_model(QWEN3, tmp_path / "base")
    fewer = QWEN3._replace(settings=QWEN3.settings | {"num_experts": 3})
    other = random_model(fewer, tmp_path / "other")
    path = save_lora(other, tmp_path / "adapter", 1, target_modules=[], target_parameters=[DOWN])
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), dtype="float32", skip_tokenizer_init=True, max_model_len=48,
            num_gpu_blocks_override=8, enable_lora=True,
        )
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"the model has 4 weights there, and .* rank 4 for each"):
        engine.add_lora(LoRARequest("other", 1, str(path)))
