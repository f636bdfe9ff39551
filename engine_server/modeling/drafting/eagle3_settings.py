"""The config.json of EAGLE-3 heads: a llama's with further settings, or the form of Speculators around one."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, PreTrainedModel

from engine_server.contract.base.quoting import quote
from engine_server.modeling.drafting.eagle3 import NUM_AUXILIARY

CONFIG = "config.json"
# The setting of Speculators' form (github.com/vllm-project/speculators) that distinguishes it, and the part that is a
# llama's; the head's settings are beside it.
SPECULATOR, LAYER_CONFIG = "speculators_model_type", "transformer_layer_config"
# Settings of the head, of which the first two are sizes and stand for others.
DEFAULTS = {"draft_vocab_size": "vocab_size", "target_hidden_size": "hidden_size"}
FLAGS = ("norm_before_residual", "norm_before_fc")
# Settings that are sizes, and the largest one.
MOST = 1 << 24
SIZES = (
    *DEFAULTS, *DEFAULTS.values(), "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip
# The setting that names the layers of the target: in a llama's config a part of `eagle_config`, with the indices of
# layers whose outputs are taken; in Speculators' form with those whose inputs are.
AUXILIARY = "eagle_aux_hidden_state_layer_ids"


def read_settings(folder: Path) -> Any:
    """Return the config of the head in a folder: a llama's with the head's settings, defaults included.

    Raises ValueError for another kind of head.
    """
    content = read_object(folder / CONFIG)
    if content.get(SPECULATOR) not in (None, "eagle3"):
        raise ValueError(f"{SPECULATOR} is {quote(content[SPECULATOR])}; eagle3 is supported")
    layer = content if SPECULATOR not in content else as_object(content.get(LAYER_CONFIG), LAYER_CONFIG)
    if layer.get("model_type") != "llama":
        raise ValueError(f"model_type is {quote(layer.get('model_type'))}; llama is supported")
    try:
        settings: Any = LlamaConfig.from_dict(layer)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ValueError(f"{CONFIG} is no configuration of a llama: {error}") from error
    for name, default in DEFAULTS.items():
        value = content.get(name)
        setattr(settings, name, getattr(settings, default) if value is None else value)
    for name in FLAGS:
        setattr(settings, name, as_flag(content.get(name), name))
    check_settings(settings)
    settings.auxiliary = named_layers(content)
    return settings


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ValueError, which names the file."""
    try:
        return as_object(json.loads(path.read_bytes()), path.name)
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"{path.name} can't be read: {error}") from error


def as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {quote(value)}; expected is an object")
    return value


def as_flag(value: Any, name: str) -> bool:
    if value not in (None, False, True):
        raise ValueError(f"{name} is {quote(value)}; expected is true or false")
    return bool(value)


def check_settings(settings: Any) -> None:
    """Raise ValueError for sizes that are none, and for a head with more than one layer or another computation."""
    if settings.num_hidden_layers != 1:
        raise ValueError(f"num_hidden_layers is {settings.num_hidden_layers}; an EAGLE-3 head has 1 layer")
    if settings.norm_before_fc:
        raise ValueError("norm_before_fc is true, which is not supported")
    for name in SIZES:
        value = getattr(settings, name)
        if type(value) is not int or not 0 < value <= MOST:
            raise ValueError(f"{name} is {quote(value)}; expected is an integer from 1 to {MOST}")
    if settings.head_dim % 2:  # a rope rotates pairs
        raise ValueError(f"head_dim is {settings.head_dim}; expected is an even number")
    heads, kv_heads = settings.num_attention_heads, settings.num_key_value_heads
    if heads % kv_heads:
        raise ValueError(f"num_key_value_heads is {kv_heads}, which doesn't divide {heads} attention heads")
    if not 0 <= settings.rms_norm_eps < 1:
        raise ValueError(f"rms_norm_eps is {settings.rms_norm_eps}; expected is a number from 0 to 1")


def check_target(settings: Any, target: PreTrainedModel) -> None:
    """Raise ValueError for a head of a target with other sizes."""
    own = target.config.get_text_config()
    for name, expected, found in (
        ("target_hidden_size, or else hidden_size,", settings.target_hidden_size, own.hidden_size),
        ("vocab_size", settings.vocab_size, own.vocab_size),
    ):
        if expected != found:
            raise ValueError(f"{name} is {expected}; the target's is {found}")


def named_layers(content: dict[str, Any]) -> list[Any] | None:
    """Return the target's layers whose outputs a head takes by its config.json; None: the default ones."""
    if SPECULATOR in content:
        inputs = content.get(AUXILIARY)
        return [layer - 1 if type(layer) is int else layer for layer in as_list(inputs)] or None
    options = as_object(content.get("eagle_config") or {}, "eagle_config")
    if options.get("use_aux_hidden_state") not in (None, True):
        raise ValueError("use_aux_hidden_state is false, which is not supported")
    return as_list(options.get(AUXILIARY)) or None


def as_list(value: Any) -> list[Any]:
    """Return a list of the setting AUXILIARY, which may be missing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{AUXILIARY} is {quote(value)}; expected is a list")
    return value


def auxiliary_layers(settings: Any, count: int) -> tuple[int, ...]:
    """Return the indices of the target's layers whose outputs the head takes; by default, as in the paper's code.

    These are the inputs of layers 2, count / 2 and count - 3. count: the target's layers. Raises ValueError.
    """
    layers = settings.auxiliary or [1, count // 2 - 1, count - 4]
    valid = all(type(layer) is int and 0 <= layer < count for layer in layers)
    if not valid or layers != sorted(set(layers)) or len(layers) != NUM_AUXILIARY:
        raise ValueError(
            f"it takes the outputs of the target's layers {quote(layers)}; expected are {NUM_AUXILIARY} of its {count} "
            f"layers, ascending, by default or by {AUXILIARY}"
        )
    return tuple(layers)
