"""The refusal of models that transformers can't build, or that can't run as a flat batch."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedConfig

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.loader.layer_types import KNOWN, attending_layers, layer_types

# Errors of code that was not written for the config, or for a flat batch.
ERRORS = (AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
# transformers quotes the name of our attention where a model's class has no place for it.
UNKNOWN_ATTENTION = re.compile(rf"""["']{IMPLEMENTATION}["']""")


@contextmanager
def refused_by_name(name: str) -> Iterator[None]:
    """Raise UnsupportedModelError with the model's name in place of an error of its code. name: of its class."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except UnsupportedModelError as error:
        if name in str(error):
            raise
        raise UnsupportedModelError(f"{name} can't run: {error}") from error
    except ERRORS as error:
        unknown = UNKNOWN_ATTENTION.search(str(error))
        reason = "its attention can't be replaced" if unknown else f"{type(error).__name__}: {error}"
        raise UnsupportedModelError(f"{name} can't be built or run: {reason}") from error


def check_layer_types(config: PreTrainedConfig, name: str) -> None:
    """Raise UnsupportedModelError for a config with layers of other types, or that reads another model's K and V.

    name: of the model's class.
    """
    text = config.get_text_config()
    if getattr(text, "num_kv_shared_layers", None) == text.num_hidden_layers:
        raise UnsupportedModelError(
            f"{name} has no keys and values of its own: it drafts for another model, which is not supported"
        )
    unsupported = [kind for kind in dict.fromkeys(layer_types(text)) if kind not in KNOWN]
    if unsupported:
        raise UnsupportedModelError(
            f"{name} has layers of type {', '.join(unsupported)}, which are not supported"
        )
    if not attending_layers(text):
        raise UnsupportedModelError(f"{name} has no layer of attention, which is not supported")
