"""Rotations of queries and keys in attention's forward: by a kernel, and if attention computes it, left to that."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn

from engine_server.modeling.layers.norm import FusedRMSNorm, HeadNorm
from engine_server.modeling.layers.rotation import ChosenRotation
from engine_server.modeling.replacements.forwards import class_with_forward, with_global
from engine_server.modeling.replacements.replacement import Replacement, Setup

ROTATION = "apply_rotary_pos_emb"
# The norms of heads in attention before the rotation, and the part of PendingHeads that each is.
HEAD_NORMS = {"q_norm": "query_norm", "k_norm": "key_norm"}


@dataclass(frozen=True)
class Rotated:
    """A rotation, and the classes of attention in whose forward the name of the model's function refers to it."""

    rotation: ChosenRotation
    # Ours, by the class that they replace.
    classes: dict[type, Any] = field(default_factory=dict)

    def change_class(self, attention: nn.Module) -> None:
        """Make attention compute this rotation."""
        kind = type(attention)
        if kind not in self.classes:
            forward = with_global(kind.forward, ROTATION, self.rotation)
            self.classes[kind] = class_with_forward(attention, forward)
        attention.__class__ = self.classes[kind]


def rotation_in(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function by which a module's forward rotates queries and keys, the model's own or ours."""
    forward = type(module).forward
    if not isinstance(forward, FunctionType) or ROTATION not in forward.__code__.co_names:
        return None
    found: Callable[..., Any] | None = forward.__globals__.get(ROTATION)
    return found


def key_of_rotation(module: nn.Module, parent: nn.Module) -> Callable[..., Any] | None:
    """Return the model's own function by which a module rotates queries and keys."""
    found = rotation_in(module)
    return None if isinstance(found, ChosenRotation) else found


def candidate(attention: nn.Module, setup: Setup) -> Rotated:
    """Return a rotation that chooses its kernel at its first call."""
    original = rotation_in(attention)
    assert original is not None
    return Rotated(ChosenRotation(setup.kernels, original))


def has_kernel(rotated: Rotated) -> bool:
    """Return True if a rotation has been called, and a kernel computes the same."""
    return rotated.rotation.chosen not in (None, rotated.rotation.original)


def rotate(attention: nn.Module, rotated: Rotated, setup: Setup) -> tuple[nn.Module, str]:
    """Make attention rotate by a kernel."""
    rotated.change_class(attention)
    return attention, "a rotation kernel"


def reason(key: Any) -> str:
    """Return the reason for which a rotation is left."""
    return "no kernel rotates as it does"


def key_of_deferrable(module: nn.Module, parent: nn.Module) -> Callable[..., Any] | None:
    """Return the model's own function in place of which a module calls a rotation that attention can compute."""
    found = rotation_in(module)
    return found.original if isinstance(found, ChosenRotation) and found.deferrable else None


def deferred(attention: nn.Module, setup: Setup) -> Rotated:
    """Return a module's rotation, left to attention."""
    rotation = rotation_in(attention)
    assert isinstance(rotation, ChosenRotation)
    return Rotated(rotation.deferring())


def defer(attention: nn.Module, rotated: Rotated, setup: Setup) -> tuple[nn.Module, str]:
    """Leave the rotation, and the norms of each head of queries and keys, to the attention backend."""
    rotated.change_class(attention)
    dim = getattr(attention, "head_dim", None)
    for name, part in HEAD_NORMS.items():
        norm = attention._modules.get(name)
        if type(norm) is FusedRMSNorm and norm.weight.shape == (dim,):
            head_norm: Any = norm
            head_norm.__class__, head_norm.part = HeadNorm, part
    return attention, "a rotation with the cache's write"


ROTATIONS = Replacement("rotations", key_of_rotation, candidate, rotate, reason, has_kernel=has_kernel)
DEFERRED_ROTATIONS = Replacement("deferred rotations", key_of_deferrable, deferred, defer, one_by_one=True)
