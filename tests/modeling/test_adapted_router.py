"""Routers with updates of their weights."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.low_rank import LowRankPair, LowRankTable, StepSlots
from engine_server.modeling.layers.adapted_router import adapt_router, takes_updates
from engine_server.modeling.layers.kernel_sets.plain import add_low_rank

TOKENS, HIDDEN, EXPERTS, RANK = 5, 16, 8, 2


class LinearRouter(nn.Module):
    """A router that returns its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.weight)


class Float32Router(LinearRouter):
    """A router that computes its logits in float32, as DeepSeek's do."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states.float(), self.weight.float())


class BiasedRouter(LinearRouter):
    """A router with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(EXPERTS), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.weight, self.bias)


class MatmulRouter(LinearRouter):
    """A router whose product is another operation."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states @ self.weight.t()


class TwoProducts(LinearRouter):
    """A module with two products of the weight's shape."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.weight) - F.linear(hidden_states, torch.ones_like(self.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (LinearRouter(), True),
        (Float32Router(), True),
        (BiasedRouter(), True),
        (MatmulRouter(), False),
        (TwoProducts(), False),
        (nn.Linear(HIDDEN, EXPERTS), False),  # of another kind
        (nn.LayerNorm(HIDDEN), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_router_takes_updates_if_they_change_it_as_a_merged_weight_does(
    module: nn.Module, expected: bool, dtype: torch.dtype
) -> None:
    module = deepcopy(module).to(dtype)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}

    assert takes_updates(module, add_low_rank) is expected

    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LinearRouter, Float32Router, BiasedRouter])
def test_each_row_has_the_logits_of_its_own_adapter(kind: type[LinearRouter], dtype: torch.dtype) -> None:
    router, slots = kind().to(dtype), StepSlots()
    table = LowRankTable(HIDDEN, EXPERTS, 2, RANK, dtype, torch.device("cpu"))
    pairs = [LowRankPair(torch.randn(RANK, HIDDEN), torch.randn(RANK, EXPERTS)) for _ in range(2)]
    for slot, pair in enumerate(pairs):
        table.put(slot, [pair])
    values = torch.randn(TOKENS, HIDDEN, dtype=dtype)
    plain = router(values)
    adapt_router(router, table, slots, add_low_rank)
    updates = [values.float() @ a.t() @ b for a, b in pairs]
    expected = plain.float().clone()
    expected[0] += updates[0][0]
    expected[3] += updates[1][3]

    assert torch.equal(router(values), plain)
    slots.rows = torch.tensor([0, -1, -1, 1, -1], dtype=torch.int32)
    logits = router(values)

    assert logits.dtype == plain.dtype
    assert torch.equal(logits[[1, 2, 4]], plain[[1, 2, 4]])
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=tolerance)
