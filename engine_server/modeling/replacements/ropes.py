"""Rotary embeddings: those that stretch do so by sequence, and the others become tables."""

from typing import Any

import torch
from torch import nn

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device.interface import Device
from engine_server.modeling.layers.rope import SequenceRope, is_stretched
from engine_server.modeling.layers.rope_table import ROPE, RopeTable
from engine_server.modeling.replacements.report import PassReport, Tally


def replace_ropes(model: nn.Module, device: Device) -> PassReport:
    """Replace rotary embeddings that stretch beyond the trained positions by ones that do so per sequence."""
    tally = Tally("stretched ropes")
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            rope: Any = child
            if not hasattr(rope, "rope_type"):
                continue
            layers = [*rope.rope_type] if isinstance(rope.rope_type, dict) else [None]
            kinds = [kind for kind in layers if is_stretched(rope, kind)]
            if len(kinds) > 1:
                names = " and ".join(map(str, kinds))
                raise UnsupportedModelError(
                    f"the ropes of {names} layers stretch with a context; one type of layers at most may"
                )
            for kind in kinds:
                setattr(parent, name, SequenceRope(rope, trained_positions(rope, kind), device, kind))
                tally.replaced(type(child), "SequenceRope")
    return tally.report()


def trained_positions(rope: Any, kind: str | None) -> int:
    """Return the length beyond which transformers changes the factors of a stretched rope.

    kind: the type of layers; None for a rope of all.
    """
    parameters = rope.config.rope_parameters if kind is None else rope.config.rope_parameters[kind]
    if parameters["rope_type"] == "longrope":
        return int(parameters["original_max_position_embeddings"])
    return int(rope.config.max_position_embeddings)


def tabulate_ropes(model: nn.Module, dtype: torch.dtype, device: torch.device, length: int) -> PassReport:
    """Replace rotary embeddings that depend on the position alone by tables of `length` positions.

    model: with its weights and buffers on the device, and with the dtype of its hidden states.
    """
    tally = Tally("tables of ropes")
    for parent in list(model.modules()):
        if isinstance(parent, SequenceRope):
            continue
        for name, child in parent.named_children():
            if not type(child).__name__.endswith(ROPE) or not hasattr(child, "rope_type"):
                continue
            table = RopeTable.of(child, length, torch.empty(0, dtype=dtype, device=device))
            if table is None:
                tally.left(type(child), "depends on more than the position, or its table is too large")
            else:
                setattr(parent, name, table)
                tally.replaced(type(child), "RopeTable")
    return tally.report()
