"""The proof at the load that a recurrent model keeps the sequences of a flat batch apart."""

from typing import Any

import pytest
import torch
import transformers
from recurrent_models import FAMILIES, SIZES
from torch import Tensor, nn

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.attention.states import StateCache
from engine_server.modeling.loader import passes
from engine_server.modeling.loader.passes import verified_choices
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers


def skeleton(family: str) -> Any:
    kind: Any = getattr(transformers, family)
    with torch.device("meta"):
        return kind._from_config(
            kind.config_class(**SIZES | FAMILIES[family]), attn_implementation=IMPLEMENTATION
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_recurrent_model_is_proven_to_keep_sequences_apart(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven = []
    check = passes.check_sequences
    monkeypatch.setattr(passes, "check_sequences", lambda *given: proven.append(check(*given)))
    verified_choices(skeleton(family), CpuPlatform())
    assert proven == [None]


@pytest.mark.parametrize("family", ["Qwen3_5ForCausalLM", "Lfm2ForCausalLM", "GraniteMoeHybridForCausalLM"])
@pytest.mark.parametrize("fault", ["states that are lost", "states of another sequence"])
def test_model_whose_states_are_mixed_up_is_refused_with_the_class_of_the_mixer(
    fault: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = StateCache.read

    def wrong(cache: StateCache, *given: Any) -> Tensor:
        states = read(cache, *given)
        return torch.zeros_like(states) if fault == "states that are lost" else states.flip(0)

    monkeypatch.setattr(StateCache, "read", wrong)
    with pytest.raises(
        UnsupportedModelError, match=r"(DeltaNet|ShortConv|MambaLayer) of \w+ computes other results"
    ):
        verified_choices(skeleton(family), CpuPlatform())


def test_module_that_mixes_tokens_by_itself_is_refused_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaking(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return states + states.roll(1, 1)

    build = passes.sample_copy

    def leaking(*given: Any) -> Any:
        copy: Any = build(*given)
        copy.model.layers[1].feed_forward = Leaking()
        return copy

    monkeypatch.setattr(passes, "sample_copy", leaking)
    with pytest.raises(UnsupportedModelError, match="Leaking of Lfm2ForCausalLM computes other results"):
        verified_choices(skeleton("Lfm2ForCausalLM"), CpuPlatform())
