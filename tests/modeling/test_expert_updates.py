"""Updates of experts by adapters, against experts whose weights contain them."""

import pytest
import torch
from expert_updates import SLOTS, adapted, adapters, expected, result
from tiny_experts import HIDDEN, TOKENS, by_kind, experts_of, inputs, tiny

from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, GatedExperts
from engine_server.modeling.layers.grouped_experts import GroupedExperts
from engine_server.modeling.layers.routed_experts import RoutedExperts

pytestmark = pytest.mark.transformers

CLASSES = (RoutedExperts, GroupedExperts)


@by_kind
@pytest.mark.parametrize("own", CLASSES)
def test_each_token_gets_the_updates_of_its_adapter(kind: str, own: type[GatedExperts]) -> None:
    torch.testing.assert_close(result(kind, own), expected(kind), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("own", CLASSES)
def test_parts_of_two_ranks_add_up_to_the_whole(own: type[GatedExperts]) -> None:
    parts = [
        result("Mixtral", own, {GATE_UP: Cut(1, 2, rank, blocks=2), DOWN: Cut(2, 2, rank)})
        for rank in range(2)
    ]
    torch.testing.assert_close(sum(parts), expected("Mixtral"), rtol=1e-4, atol=1e-5)


@by_kind
def test_adapter_that_leaves_its_slot_leaves_no_updates(kind: str) -> None:
    experts, updates = adapted(kind, GroupedExperts)
    updates.put(0, adapters()[0])
    updates.put(0, LowRankAdapter("other", {}))
    with torch.inference_mode(), updates.applied(torch.zeros(TOKENS, dtype=torch.int32)):
        found = experts(*inputs())
    torch.testing.assert_close(found, experts_of(tiny(kind))(*inputs()), rtol=1e-5, atol=1e-5)


@by_kind
def test_grouped_experts_of_a_step_without_adapters_run_transformers_own_forward(kind: str) -> None:
    experts, _ = adapted(kind, GroupedExperts)
    assert torch.equal(experts(*inputs()), experts_of(tiny(kind))(*inputs()))


@by_kind
def test_host_reads_nothing_of_a_step_of_grouped_experts(kind: str) -> None:
    """A tensor without values can't be read: nothing waits for the device, and a CUDA graph can capture the step."""
    experts, updates = adapted(kind, GroupedExperts, None, torch.bfloat16, "meta", lambda *_: None)
    given = [tensor.to("meta") for tensor in inputs(torch.bfloat16)]
    with torch.inference_mode(), updates.applied(SLOTS.to("meta")):
        assert experts(*given).shape == (TOKENS, HIDDEN)
