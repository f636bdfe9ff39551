"""Updates of experts by adapters, against experts whose weights contain them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_experts import HIDDEN, INNER, TOKENS, by_kind, experts_of, inputs, tiny
from torch import Tensor

from engine_server.modeling.adapters.adapted_model import AdaptedModel
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.formats.low_rank import LowRankPair
from engine_server.modeling.formats.weight_format import Cut, as_loaded
from engine_server.modeling.layers.experts import has_experts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, GatedExperts
from engine_server.modeling.layers.kernel_sets import plain
from engine_server.modeling.loading.weights import replace_experts

pytestmark = pytest.mark.transformers

RANK = 3
# Of the adapters in two slots: the experts whose weights they change.
CHANGED = [{GATE_UP: [0, 1, 3], DOWN: [0, 1, 2, 3]}, {GATE_UP: [], DOWN: [2]}]
SLOTS = torch.tensor([0, -1, 1, 1, 0, -1, 0], dtype=torch.int32)
FIRST = "model.layers.0.mlp.experts"

Add = Callable[..., object]


def adapters() -> list[LowRankAdapter]:
    torch.manual_seed(2)
    shapes = {GATE_UP: (HIDDEN, 2 * INNER), DOWN: (INNER, HIDDEN)}
    return [
        LowRankAdapter(
            str(slot),
            {
                f"{FIRST}.{weight}.{expert}": LowRankPair(
                    torch.randn(RANK, shapes[weight][0]) / 8, torch.randn(RANK, shapes[weight][1]) / 8
                )
                for weight, experts in changed.items()
                for expert in experts
            },
        )
        for slot, changed in enumerate(CHANGED)
    ]


def adapted(
    kind: str, grouped: bool, cuts: dict[str, Cut] | None = None, dtype: torch.dtype = torch.float32,
    device: str = "cpu", add: Add = plain.add_low_rank,
) -> Any:  # fmt: skip
    """Return the first experts of a model, and the model's adapters."""
    model = tiny(kind, dtype)
    experts_of(model)
    classes = frozenset(type(module) for module in model.modules() if has_experts(module))
    replace_experts(model, as_loaded, *((frozenset(), classes) if grouped else (classes, frozenset())))
    every = [module for module in model.modules() if isinstance(module, GatedExperts)]
    for module in every:
        module.cuts = cuts or {}
        module.settle()
    model.to(device)
    return every[0], AdaptedModel(model, model.base_model, len(CHANGED), RANK + 1, add)


def result(kind: str, grouped: bool, cuts: dict[str, Cut] | None = None) -> Tensor:
    experts, updates = adapted(kind, grouped, cuts)
    for slot, adapter in enumerate(adapters()):
        updates.put(slot, adapter)
    with torch.inference_mode(), updates.applied(SLOTS):
        return experts(*inputs())


def expected(kind: str) -> Tensor:
    """Return each token's result by experts into whose weights its adapter is merged."""
    rows = experts_of(tiny(kind))(*inputs())
    for slot, adapter in enumerate(adapters()):
        experts = experts_of(tiny(kind))
        for name, pair in adapter.pairs.items():
            weight, number = name.removeprefix(f"{FIRST}.").split(".")
            update = pair.b.T @ pair.a
            experts.get_parameter(weight)[int(number)] += update.T if experts.is_transposed else update
        own = slot == SLOTS
        rows[own] = experts(*inputs())[own]
    return rows


@by_kind
@pytest.mark.parametrize("grouped", [False, True], ids=["routed", "grouped"])
def test_each_token_gets_the_updates_of_its_adapter(kind: str, grouped: bool) -> None:
    torch.testing.assert_close(result(kind, grouped), expected(kind), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grouped", [False, True], ids=["routed", "grouped"])
def test_parts_of_two_ranks_add_up_to_the_whole(grouped: bool) -> None:
    parts = [
        result("Mixtral", grouped, {GATE_UP: Cut(1, 2, rank, blocks=2), DOWN: Cut(2, 2, rank)})
        for rank in range(2)
    ]
    torch.testing.assert_close(sum(parts), expected("Mixtral"), rtol=1e-4, atol=1e-5)


@by_kind
def test_adapter_that_leaves_its_slot_leaves_no_updates(kind: str) -> None:
    experts, updates = adapted(kind, grouped=True)
    updates.put(0, adapters()[0])
    updates.put(0, LowRankAdapter("other", {}))
    with torch.inference_mode(), updates.applied(torch.zeros(TOKENS, dtype=torch.int32)):
        found = experts(*inputs())
    torch.testing.assert_close(found, experts_of(tiny(kind))(*inputs()), rtol=1e-5, atol=1e-5)


@by_kind
def test_grouped_experts_of_a_step_without_adapters_run_transformers_own_forward(kind: str) -> None:
    experts, _ = adapted(kind, grouped=True)
    assert torch.equal(experts(*inputs()), experts_of(tiny(kind))(*inputs()))


@by_kind
def test_host_reads_nothing_of_a_step_of_grouped_experts(kind: str) -> None:
    """A tensor without values can't be read: nothing waits for the device, and a CUDA graph can capture the step."""
    experts, updates = adapted(kind, True, None, torch.bfloat16, "meta", lambda *_: None)
    given = [tensor.to("meta") for tensor in inputs(torch.bfloat16)]
    with torch.inference_mode(), updates.applied(SLOTS.to("meta")):
        assert experts(*given).shape == (TOKENS, HIDDEN)
