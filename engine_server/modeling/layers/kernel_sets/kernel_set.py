"""The kernels of one kind of device for parts of a model besides products and attention."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from engine_server.modeling.formats.low_rank import AddLowRank
from engine_server.modeling.heads.pending import PendingRotation
from engine_server.modeling.layers.gated_experts import GatedExperts
from engine_server.modeling.recurrence.convolution import Convolution
from engine_server.modeling.recurrence.delta_rule import DeltaRule
from engine_server.modeling.recurrence.function import RecurrentFunction
from engine_server.modeling.recurrence.state_space import StateSpace

# Takes query, key [1, heads, T, dim] and cos, sin [1, T, angles]; returns the rotated query and key.
Rotation = Callable[..., tuple[Tensor, Tensor]]
# [...] to [...], each element alone.
Activation = Callable[[Tensor], Tensor]
# Takes logits [tokens, experts], a number of choices, a form and a dtype; see kernels/router.py.
Choose = Callable[[Tensor, int, bool, torch.dtype], tuple[Tensor, Tensor]]
# [..., 2 * dim] to [..., dim]; may overwrite its input.
Gate = Callable[[Tensor], Tensor]


@runtime_checkable
class DeferrableRotation(Protocol):
    """A Rotation that attention can compute."""

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]: ...

    def pending(self, cos: Tensor, sin: Tensor) -> PendingRotation:
        """Return the rotation by angles [1, T, angles]."""


class KernelSet(NamedTuple):
    """Kernels, of which the passes choose those with the same results as a model's own modules."""

    # Takes (x, weight, eps, offset, residual); returns the sum and its norm: see kernels/norm.py.
    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    # The offsets of the weight that `rms_norm` supports.
    offsets: Sequence[float]
    gates: Sequence[Gate]
    # Takes a token's number of angles and the size of a head; returns the candidate rotations.
    rotations: Callable[[int, int], Sequence[Rotation]]
    add_low_rank: AddLowRank
    # Takes (x, weight, bias, eps); None: torch's own is as good.
    layer_norm: Callable[[Tensor, Tensor, Tensor | None, float], Tensor] | None = None
    activations: Sequence[Activation] = ()
    # Classes of gated experts, the fastest first.
    experts: Sequence[type[GatedExperts]] = ()
    # The choice of experts by a router's logits; None: torch's own is as good.
    choose: Choose | None = None
    # The functions of recurrent layers.
    recurrences: Sequence[type[RecurrentFunction]] = (Convolution, DeltaRule, StateSpace)
