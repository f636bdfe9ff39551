"""LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.folder_settings import Format
from engine_server.model_sources.settings_tables import LORA
from engine_server.modeling.formats.finite import all_finite
from engine_server.modeling.formats.low_rank import LowRankPair

T = TypeVar("T")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Larger configurations are not read.
CONFIG_BYTES = 1 << 20
# PEFT's names of the two matrices of a layer, [rank, in] and [out, rank], or of an embedding.
KEY = re.compile(r"base_model\.model\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")
# The frozen table that PEFT saves beside the update of an embedding.
FROZEN = re.compile(r"base_model\.model\.(.+?)(\.base_layer)?\.weight")
# The weights of experts, and of routers, that an adapter may change as parameters of their module. PEFT's wrapper of
# the first is the innermost.
PARAMETERS = "gate_up_proj", "down_proj", "weight"
# What PEFT adds to the name of a module for each wrapper around it.
WRAPPED = ".base_layer"
# Initialisations that change the base model's weights, which the adapter is then trained beside.
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class AdapterError(ValueError):
    """An adapter that can't be used; the message states why."""


class LowRankAdapter(NamedTuple):
    """The content of a LoRA adapter."""

    # SHA-256 of both files.
    digest: str
    # By the names of the base model's modules.
    pairs: dict[str, LowRankPair]


def read_low_rank_adapter(
    folder: Path, max_rank: int, max_bytes: int, num_weights: Mapping[str, int]
) -> LowRankAdapter:
    """Read the adapter in a folder. Raises AdapterError for one that can't be used.

    max_bytes: files of weights that are larger are not read. num_weights: the number of experts, by the names of the
    model's stacked weights that take adapters, and 1 for those of routers.
    """
    settings = read_settings(folder)
    check_settings(settings, folder)
    largest = f"an adapter of rank {max_rank}, the engine's max_lora_rank, has"
    digest, tensors = read_weights(folder, max_bytes, largest)
    return LowRankAdapter(digest, paired(tensors, settings, max_rank, num_weights))


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of adapter_config.json."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > CONFIG_BYTES:
            raise AdapterError(f"{path} has more than {CONFIG_BYTES} bytes")
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(f"{path} can't be read: {error}") from error
    if not isinstance(settings, dict):
        raise AdapterError(f"{path} is no JSON object")
    return settings


def read_weights(folder: Path, max_bytes: int, largest: str) -> tuple[str, dict[str, Tensor]]:
    """Return the SHA-256 of both files of an adapter, and its tensors.

    largest: the beginning of a sentence on an adapter of `max_bytes`, for the error about a larger file.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise AdapterError(f"{folder} has no {WEIGHTS}; other kinds of files are not read")
    size = path.stat().st_size
    if size > max_bytes:
        raise AdapterError(f"{path} has {size} bytes; {largest} at most {max_bytes} for this model")
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path} can't be read: {error}") from error
    except KeyError as error:  # a dtype that safetensors' reader for torch lacks
        raise AdapterError(
            f"{path} has tensors of the type {quote(error.args[0])}; "
            "floating-point numbers of 16 to 64 bits are supported"
        ) from error
    digest = hashlib.sha256((folder / CONFIG).read_bytes() + b"\0")
    digest.update(content)
    return digest.hexdigest(), tensors


def check_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Raise AdapterError for another kind of adapter than LoRA, and for settings that would change the result."""
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise AdapterError(
            f"peft_type is {quote(kind)}; LORA is supported, and PROMPT_TUNING and P_TUNING as prompt adapters"
        )
    check_table(LORA, settings, folder)
    for target in target_parameters(settings):
        if target.rpartition(".")[2] not in PARAMETERS:
            raise AdapterError(
                f"target_parameters has {quote(target)}; gate_up_proj and down_proj of experts, and the weight of "
                "routers are supported"
            )
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(CHANGED_BASE):
        raise AdapterError(
            f"init_lora_weights is {quote(start)}, which changes the base model's weights; PEFT can convert such an "
            "adapter when it saves it"
        )


def check_table(table: Format, settings: Mapping[str, Any], folder: Path) -> None:
    """Raise AdapterError for settings that the table of their format refuses."""
    try:
        table.check(settings, str(folder / CONFIG))
    except ValueError as error:
        raise AdapterError(str(error)) from None


def target_parameters(settings: Mapping[str, Any]) -> list[str]:
    """Return the ends of the names of adapted parameters."""
    try:
        return msgspec.convert(settings.get("target_parameters") or [], list[str])
    except msgspec.ValidationError as error:
        raise AdapterError(f"target_parameters: {error}") from None


def paired(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], max_rank: int, num_weights: Mapping[str, int]
) -> dict[str, LowRankPair]:
    """Return the update of each module, and of each weight of a parameter; its number follows the parameter's name."""
    halves: dict[str, dict[str, Tensor]] = {}
    frozen = []
    for key, tensor in tensors.items():
        if match := KEY.fullmatch(key):
            name, _, letter = match.groups()
            halves.setdefault(name, {})[letter] = tensor
        elif match := FROZEN.fullmatch(key):
            frozen.append(match[1])
        else:
            raise AdapterError(f"the tensor {quote(key)} is no part of a LoRA adapter")
    for name in frozen:
        if name not in halves:
            raise AdapterError(f"the adapter replaces the weight of {quote(name)}, which is not supported")
    if not halves:
        raise AdapterError("the adapter has no tensors")
    scaling, targets = Scaling.of(settings), target_parameters(settings)
    pairs: dict[str, LowRankPair] = {}
    for name, own in halves.items():
        parameter = changed_parameter(name, targets, num_weights)
        if parameter is not None:
            parts = _of_weights(parameter, own, scaling.rank(parameter), num_weights[parameter])
            for number, one in enumerate(parts):
                pairs[f"{parameter}.{number}"] = _pair(parameter, one, scaling, max_rank)
        elif target := matching_target(f"{name}.weight", targets):
            raise AdapterError(
                f"target_parameters has {quote(target)}, and {quote(name)} is no router that takes adapters"
            )
        else:
            pairs[name] = _pair(name, own, scaling, max_rank)
    return pairs


def changed_parameter(name: str, targets: Sequence[str], parameters: Collection[str]) -> str | None:
    """Return the name of the parameter that a wrapped module's update changes; None for an update of a module.

    PEFT wraps a module once for each of its parameters in `targets`.
    """
    module = name
    while module.endswith(WRAPPED):
        module = module.removesuffix(WRAPPED)
    depth = (len(name) - len(module)) // len(WRAPPED)
    names = [f"{module}.{parameter}" for parameter in PARAMETERS]
    changed = [name for name in names if name in parameters and matching_target(name, targets)]
    return changed[-1 - depth] if depth < len(changed) else None


def matching_target(parameter: str, targets: Sequence[str]) -> str | None:
    """Return the first target that ends a parameter's name, or None."""
    return next((target for target in targets if f".{parameter}".endswith(f".{target}")), None)


def _of_weights(
    name: str, halves: Mapping[str, Tensor], rank: int, count: int
) -> Iterator[dict[str, Tensor]]:
    """Yield each weight's part of an update: rows of A follow each other, columns of B alternate."""
    a, b = halves.get("A"), halves.get("B")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank * count:
        shapes = {letter: list(half.shape) for letter, half in sorted(halves.items())}
        raise AdapterError(
            f"{quote(name)} has {shapes}; the model has {count} weights there, and {CONFIG} rank {rank} for each"
        )
    for number in range(count):
        yield {"A": a[number * rank : (number + 1) * rank], "B": b[:, number::count]}


def _pair(name: str, halves: Mapping[str, Tensor], scaling: "Scaling", max_rank: int) -> LowRankPair:
    if halves.keys() != {"A", "B"}:
        raise AdapterError(f"{quote(name)} has lora_{min(halves)} alone; an update has lora_A and lora_B")
    a, b = halves["A"], halves["B"]
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"{quote(name)} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, whose ranks differ"
        )
    rank = len(a)
    if not 0 < rank <= max_rank:
        raise AdapterError(f"{quote(name)} has rank {rank}; max_lora_rank of the engine is {max_rank}")
    if not (a.is_floating_point() and b.is_floating_point()):
        raise AdapterError(f"{quote(name)} has {a.dtype} and {b.dtype}; floating-point numbers are supported")
    b = b.float().t() * scaling.factor(name, rank)
    if not (all_finite(a) and all_finite(b)):
        raise AdapterError(f"{quote(name)} has values that are not finite")
    return LowRankPair(a, b.contiguous())


class Scaling(NamedTuple):
    """The ranks of updates, and their factors: alpha / rank, or of rsLoRA (arXiv 2312.03732) alpha / sqrt(rank)."""

    usual_rank: int
    usual_alpha: float
    # By the ends of modules' names.
    ranks: dict[str, int]
    alphas: dict[str, float]
    power: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read the settings. Raises AdapterError."""
        try:
            return cls(
                int(settings["r"]),
                float(settings["lora_alpha"]),
                {suffix(key): int(rank) for key, rank in (settings.get("rank_pattern") or {}).items()},
                {suffix(key): float(alpha) for key, alpha in (settings.get("alpha_pattern") or {}).items()},
                0.5 if settings.get("use_rslora") else 1.0,
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, AdapterError):
                raise
            raise AdapterError(
                f"{CONFIG} has no valid r, lora_alpha, rank_pattern and alpha_pattern: {error!r}"
            ) from error

    def rank(self, name: str) -> int:
        return matching(self.ranks, name, self.usual_rank)

    def factor(self, name: str, rank: int) -> float:
        """Return the factor of an update. Raises AdapterError for one of another rank than the settings have."""
        if rank != self.rank(name):
            raise AdapterError(f"{quote(name)} has rank {rank}, and {CONFIG} says {self.rank(name)}")
        return matching(self.alphas, name, self.usual_alpha) / math.pow(rank, self.power)


def suffix(pattern: str) -> str:
    """Return the end of a module's name that a key of rank_pattern or alpha_pattern means, after a leading dot.

    PEFT takes regular expressions, whose evaluation may never end; names are what its users write. PEFT itself writes
    those of experts after ".*\\.", which changes nothing.
    """
    is_whole = pattern.startswith("^")
    plain = pattern.removeprefix("^" if is_whole else r".*\.").removesuffix("$").replace("\\.", ".")
    if not re.fullmatch(r"[\w.]+", plain):
        raise AdapterError(
            f"the pattern {quote(pattern)} is no module's name; regular expressions are not supported"
        )
    return plain if is_whole else f".{plain}"


def matching(values: Mapping[str, T], name: str, usual: T) -> T:
    """Return the value of the first suffix that ends a module's name, or `usual`."""
    return next((value for end, value in values.items() if f".{name}".endswith(end) or name == end), usual)


def adapter_bytes(elements: int) -> int:
    """Return the most bytes of a file with so many elements, in float32, and names."""
    return elements * torch.float32.itemsize + CONFIG_BYTES
