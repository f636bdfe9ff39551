"""Tensors in a model's files that none of its parameters takes, found before the weights are read.

transformers leaves such tensors out with a warning. One inside a layer belongs to something that the config doesn't
say, without which the layer computes something else.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from engine_server.contract.base.quoting import quote, shorten
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, Weights

# Buffers that earlier versions of transformers saved, and the scales of a quantised KV cache, which ours isn't.
KNOWN = re.compile(
    r"(^|\.)(position_ids|inv_freq|masked_bias|(attn|attention)\.bias)$"
    r"|\.[qkv]_proj\.output_scale$|\.([qkv]|kv)_(scale|zero_point)$"
)
# The file in which AutoAWQ describes quantised weights.
FOREIGN_CONFIG = "quant_config.json"
DENSE = (*FLOATS, "F64")
# Names in a message.
MOST_NAMES = 3
logger = logging.getLogger(__name__)


def check_tensors(model: PreTrainedModel, tensors: Weights, folder: Path) -> None:
    """Refuse tensors that layers of the model would need, and log those of parts that it doesn't have.

    model: transformers' own, on the meta device. tensors: the files' by name, those of quantised weights joined.
    Raises ValueError, which names tensors: for one inside a layer that no parameter takes, and for codes in place of
    floats.
    """
    state = model.state_dict()
    parameters = parameters_of(model, state.keys(), tensors)
    codes = [
        f"{quote(name)} is {tensor.dtype}"
        for name, tensor in tensors.items()
        if isinstance(tensor, StoredTensor) and tensor.dtype not in DENSE
        if parameters[name] in state and state[parameters[name]].is_floating_point()
    ]
    if codes:
        raise ValueError(f"{listed(codes)}, and its config doesn't say how codes are read{foreign(folder)}")
    containers = set(containers_of(model))
    inside, absent = [], Counter[str]()
    for name in untaken(model, parameters, state.keys()):
        module = innermost(model, parameters[name])
        if module in containers:
            absent[part_of(name, module)] += 1
        else:
            inside.append(quote(name))
    if inside:
        raise ValueError(
            f"no part of the model takes {listed(inside)}, inside layers that it runs{foreign(folder)}"
        )
    if absent:
        logger.info(
            "left out, since the model has no such part: %s",
            listed([f"{quote(part)} ({count} tensors)" for part, count in absent.items()]),
        )


def parameters_of(model: PreTrainedModel, known: Iterable[str], tensors: Iterable[str]) -> dict[str, str]:
    """Return the names of parameters that transformers would give tensors to, by the tensors' names.

    known: the names of the model's parameters and buffers. A result that is not among them is taken by nothing.
    """
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    state = dict.fromkeys(known, True)
    prefix = model.base_model_prefix
    found = {}
    for name in tensors:
        found[name], _ = rename_source_key(name, renamings, converters, prefix, state)
        if found[name] not in state and name in state:
            found[name] = name
    return found


def untaken(model: PreTrainedModel, parameters: Mapping[str, str], known: Iterable[str]) -> Iterator[str]:
    """Return the tensors that nothing takes and that neither transformers nor KNOWN expects to be left over."""
    state = set(known)
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    for name, parameter in parameters.items():
        if parameter not in state and not any(each.search(parameter) for each in (KNOWN, *ignored)):
            yield name


def containers_of(model: nn.Module) -> Iterator[str]:
    """Return the names of modules that hold layers, and of the lists of layers: others are layers, or inside one."""
    yield ""
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for name in lists:
        if not any(name.startswith(f"{other}.") for other in lists):
            yield name
            while name:
                name = name.rpartition(".")[0]
                yield name


def innermost(model: nn.Module, parameter: str) -> str:
    """Return the name of the innermost module of the model that a parameter's name is in."""
    inside, names = "", parameter.split(".")[:-1]
    module = model
    for name in names:
        child = module._modules.get(name)
        if child is None:
            break
        module, inside = child, f"{inside}.{name}" if inside else name
    return inside


def part_of(name: str, module: str) -> str:
    """Return the part of a model that a tensor belongs to: the first name after those of the module it is in."""
    depth = module.count(".") + 1 if module and name.startswith(f"{module}.") else 0
    return ".".join(name.split(".")[: depth + 1])


def listed(items: list[str]) -> str:
    more = f" and {len(items) - MOST_NAMES} more" if len(items) > MOST_NAMES else ""
    return ", ".join(shorten(item) for item in items[:MOST_NAMES]) + more


def foreign(folder: Path) -> str:
    """Return a sentence about another library's description of quantised weights in the folder; "" without one."""
    found = (folder / FOREIGN_CONFIG).is_file()
    return (
        f"; {FOREIGN_CONFIG} beside it describes a form of quantized weights that is not read"
        if found
        else ""
    )
