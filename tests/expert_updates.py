"""Updates of experts by adapters, by one of our classes, and by experts whose weights contain them."""

from collections.abc import Callable
from typing import Any

import torch
from tiny_experts import HIDDEN, INNER, experts_of, inputs, replace_experts, tiny
from torch import Tensor

from engine_server.modeling.adapters.adapted_model import AdaptedModel
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.formats.low_rank import LowRankPair
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, GatedExperts
from engine_server.modeling.layers.kernel_sets import plain

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
    kind: str, own: type[GatedExperts], cuts: dict[str, Cut] | None = None, dtype: torch.dtype = torch.float32,
    device: str = "cpu", add: Add = plain.add_low_rank,
) -> Any:  # fmt: skip
    """Return the first experts of a model, and the model's adapters."""
    model = tiny(kind, dtype)
    experts_of(model)
    replace_experts(model, own)
    every = [module for module in model.modules() if isinstance(module, GatedExperts)]
    for module in every:
        module.cuts = cuts or {}
        module.settle()
    model.to(device)
    return every[0], AdaptedModel(model, model.base_model, len(CHANGED), RANK + 1, add)


def result(
    kind: str, own: type[GatedExperts], cuts: dict[str, Cut] | None = None, device: str = "cpu",
    add: Add = plain.add_low_rank,
) -> Tensor:  # fmt: skip
    """Return the result of experts in a step with adapters in SLOTS."""
    experts, updates = adapted(kind, own, cuts, device=device, add=add)
    for slot, adapter in enumerate(adapters()):
        updates.put(slot, adapter)
    with torch.inference_mode(), updates.applied(SLOTS.to(device)):
        output: Tensor = experts(*(tensor.to(device) for tensor in inputs()))
    return output.cpu()


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
