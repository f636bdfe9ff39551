"""Reading of a draft head's weights from safetensors files, by the passes and conversions that read its target's."""

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.config import LoadConfig
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.checkpoints.stored import Weights, stored_tensors
from engine_server.modeling.loader.model_folder import open_checkpoint
from engine_server.modeling.loader.model_loader import complete, from_weights, replaced_class
from engine_server.modeling.loader.passes import LoadPlan, verified_choices
from engine_server.modeling.loader.room import check_room, held_bytes
from engine_server.modeling.platform.interface import Platform

# The name of a tensor of one of several experts.
EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")


def open_weights(folder: Path, settings: PreTrainedConfig, load: LoadConfig, dtype: torch.dtype) -> Weights:
    """Return the weights in a folder by name, which are read when they are indexed.

    settings: the folder's config. dtype: that of the values with which quantised weights are multiplied. Raises
    ValueError.
    """
    checkpoint = open_checkpoint(folder, load, settings)
    if checkpoint is not None:
        return checkpoint.state(dtype, load.load_format == "dequantized")
    return {**stored_tensors(folder)}


def plan_for(model: PreTrainedModel, platform: Platform, load: LoadConfig) -> LoadPlan:
    """Return the plan of the passes over a head with the modules of `model`.

    Each rank has the whole head. Its results may depend on batch composition, since the target verifies its drafts.
    """
    return LoadPlan(platform, Communicator(), False, verified_choices(model, platform), load.quantization)


def read_module(
    kind: Any,
    settings: Any,
    weights: Weights,
    published: Callable[[str], str],
    dtype: torch.dtype,
    plan: LoadPlan,
    max_model_len: int,
) -> Any:
    """Return a module of class `kind` with all of `weights`, on the platform's device.

    published: returns the name in the files for one of the module's. Raises ValueError for tensors that are missing,
    unknown or of another shape, by name.
    """
    check_experts(weights, published)
    check_room(held_bytes(weights, dtype, plan.layout, bool(plan.formatted)), plan.platform, plan.ranks.size)
    module, info = from_weights(
        replaced_class(kind, plan), settings, weights, dtype, plan, ignore_mismatched_sizes=True
    )
    if info["mismatched_keys"]:
        name, found, expected = min(info["mismatched_keys"])
        raise ValueError(f"{published(name)} has the shape {list(found)}; expected is {list(expected)}")
    for problem, names in (
        ("no weights for", info["missing_keys"]),
        ("unknown weights:", info["unexpected_keys"]),
    ):
        if names:
            raise ValueError(f"its files have {problem} {', '.join(sorted(map(published, names))[:3])}")
    module.__class__ = kind
    complete(module, plan.platform, max_model_len)
    return module


def check_experts(weights: Weights, published: Callable[[str], str]) -> None:
    """Raise ValueError for experts that can't be stacked: one lacks a tensor, or has one of another shape."""
    # Shapes by number of the expert, by name with * for the number.
    stacks: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for name, tensor in weights.items():
        if match := EXPERT.fullmatch(name):
            stacks[f"{match[1]}*{match[3]}"][match[2]] = list(tensor.shape)
    numbers = {number for stack in stacks.values() for number in stack}
    for pattern, shapes in stacks.items():
        for number in sorted(numbers):
            name = published(pattern.replace("*", number))
            if number not in shapes:
                raise ValueError(f"its files have no weights for {name}")
            expected = next(iter(shapes.values()))
            if shapes[number] != expected:
                raise ValueError(
                    f"{name} has the shape {shapes[number]}; that of another expert is {expected}"
                )
