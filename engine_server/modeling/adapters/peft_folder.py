"""LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from engine_server.contract.quoting import quote
from engine_server.modeling.formats.low_rank import LowRankPair

T = TypeVar("T")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Larger configurations are not read.
CONFIG_BYTES = 1 << 20
# PEFT's names of the two matrices of a layer, [rank, in] and [out, rank], or of an embedding.
KEY = re.compile(r"base_model\.model\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")
# The frozen table that PEFT saves beside the update of an embedding.
FROZEN = re.compile(r"base_model\.model\.(.+?)(\.base_layer)?\.weight")
# Settings with which an adapter is more than sums of low-rank products, and the values that are harmless.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "layer_replication": (None, []),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "velora_config": (None,),
}
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


def read_low_rank_adapter(folder: Path, max_rank: int, max_bytes: int) -> LowRankAdapter:
    """Read the adapter in a folder. Raises AdapterError for one that can't be used.

    max_bytes: files of weights that are larger are not read.
    """
    settings = read_settings(folder)
    check_settings(settings)
    path = folder / WEIGHTS
    if not path.is_file():
        raise AdapterError(f"{folder} has no {WEIGHTS}; other kinds of files are not read")
    size = path.stat().st_size
    if size > max_bytes:
        raise AdapterError(
            f"{path} has {size} bytes; an adapter of rank {max_rank}, the engine's max_lora_rank, has at most "
            f"{max_bytes} for this model"
        )
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path} can't be read: {error}") from error
    digest = hashlib.sha256((folder / CONFIG).read_bytes() + b"\0" + content).hexdigest()
    return LowRankAdapter(digest, paired(tensors, settings, max_rank))


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


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise AdapterError for another kind of adapter than LoRA, and for settings that would change the result."""
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"peft_type is {quote(kind)}; LORA is supported")
    for name, harmless in UNSUPPORTED.items():
        if name in settings and settings[name] not in harmless:
            raise AdapterError(f"{name} is {quote(settings[name])}, which is not supported")
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(CHANGED_BASE):
        raise AdapterError(
            f"init_lora_weights is {quote(start)}, which changes the base model's weights; PEFT can convert such an "
            "adapter when it saves it"
        )


def paired(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], max_rank: int
) -> dict[str, LowRankPair]:
    """Return the update of each module."""
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
    scale = scales(settings)
    return {name: _pair(name, own, scale, max_rank) for name, own in halves.items()}


def _pair(
    name: str, halves: Mapping[str, Tensor], scale: Callable[[str, int], float], max_rank: int
) -> LowRankPair:
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
    b = b.float().t() * scale(name, rank)
    if not (a.isfinite().all() and b.isfinite().all()):
        raise AdapterError(f"{quote(name)} has values that are not finite")
    return LowRankPair(a, b.contiguous())


def scales(settings: Mapping[str, Any]) -> Callable[[str, int], float]:
    """Return the function from a module's name and rank to the factor of its update.

    It is alpha / rank, or of rsLoRA (arXiv 2312.03732) alpha / sqrt(rank).
    """
    try:
        usual_rank, usual_alpha = int(settings["r"]), float(settings["lora_alpha"])
        ranks = {suffix(key): int(rank) for key, rank in (settings.get("rank_pattern") or {}).items()}
        alphas = {suffix(key): float(alpha) for key, alpha in (settings.get("alpha_pattern") or {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(
            f"{CONFIG} has no valid r, lora_alpha, rank_pattern and alpha_pattern: {error!r}"
        ) from error
    power = 0.5 if settings.get("use_rslora") else 1.0

    def scale(name: str, rank: int) -> float:
        expected = matching(ranks, name, usual_rank)
        if expected != rank:
            raise AdapterError(f"{quote(name)} has rank {rank}, and {CONFIG} says {expected}")
        return matching(alphas, name, usual_alpha) / math.pow(rank, power)

    return scale


def suffix(pattern: str) -> str:
    """Return the end of a module's name that a key of rank_pattern or alpha_pattern means, after a leading dot.

    PEFT takes regular expressions, whose evaluation may never end; names are what its users write.
    """
    plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
    if not re.fullmatch(r"[\w.]+", plain):
        raise AdapterError(
            f"the pattern {quote(pattern)} is no module's name; regular expressions are not supported"
        )
    return plain if pattern.startswith("^") else f".{plain}"


def matching(values: Mapping[str, T], name: str, usual: T) -> T:
    """Return the value of the first suffix that ends a module's name, or `usual`."""
    return next((value for end, value in values.items() if f".{name}".endswith(end) or name == end), usual)


def adapter_bytes(elements: int) -> int:
    """Return the most bytes of a file with so many elements, in float32, and names."""
    return elements * torch.float32.itemsize + CONFIG_BYTES
