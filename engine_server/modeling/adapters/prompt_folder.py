"""Prompt adapters as PEFT saves them: the embeddings of virtual tokens, from prompt tuning or p-tuning.

Prompt tuning: Lester et al., arXiv 2104.08691; p-tuning: Liu et al., arXiv 2103.10385, whose encoder PEFT evaluates
when it saves the adapter.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.settings_tables import P_TUNING, PROMPT_TUNING
from engine_server.modeling.adapters.peft_folder import (
    CONFIG,
    AdapterError,
    adapter_bytes,
    check_table,
    read_settings,
    read_weights,
)
from engine_server.modeling.formats.finite import all_finite

# The settings of each kind.
KINDS = {"PROMPT_TUNING": PROMPT_TUNING, "P_TUNING": P_TUNING}
# PEFT's name of the one tensor.
EMBEDDINGS = "prompt_embeddings"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class PromptAdapter(NamedTuple):
    """The content of a prompt adapter."""

    # SHA-256 of both files.
    digest: str
    # [virtual tokens, size of a token's embedding].
    embeddings: Tensor


def read_prompt_adapter(folder: Path, num_virtual: int, size: int) -> PromptAdapter:
    """Read the adapter in a folder, of `num_virtual` embeddings. Raises AdapterError for one that can't be used.

    size: that of an embedding of the model's tokens.
    """
    settings = read_settings(folder)
    found = num_virtual_tokens(settings)
    if found is None:
        raise AdapterError(
            f"peft_type is {quote(settings.get('peft_type'))}; PROMPT_TUNING and P_TUNING are supported, and LORA as "
            "LoRA adapters"
        )
    check_table(KINDS[settings["peft_type"]], settings, folder)
    if found != num_virtual:
        raise AdapterError(f"{CONFIG} has {found} virtual tokens, and the request says {num_virtual}")
    max_bytes = adapter_bytes(num_virtual * size)
    digest, tensors = read_weights(folder, max_bytes, f"{num_virtual} virtual tokens take")
    return PromptAdapter(digest, checked(tensors, num_virtual, size))


def num_virtual_tokens(settings: Mapping[str, Any]) -> int | None:
    """Return the number of virtual tokens in the content of adapter_config.json; None: it is no prompt adapter's.

    Raises AdapterError if it isn't a number.
    """
    if settings.get("peft_type") not in [*KINDS]:  # it may be anything, and not hashable
        return None
    count = settings.get("num_virtual_tokens")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise AdapterError(f"num_virtual_tokens is {quote(count)}; it takes an integer from 1 on")
    return count


def checked(tensors: Mapping[str, Tensor], num_virtual: int, size: int) -> Tensor:
    """Return the embeddings."""
    for key in tensors:
        if key != EMBEDDINGS:
            raise AdapterError(f"the tensor {quote(key)} is no part of a prompt adapter")
    if not tensors:
        raise AdapterError(f"the adapter has no {EMBEDDINGS}")
    embeddings = tensors[EMBEDDINGS]
    if embeddings.shape != (num_virtual, size):
        raise AdapterError(
            f"{EMBEDDINGS} has the shape {list(embeddings.shape)}, and {num_virtual} tokens of the model "
            f"[{num_virtual}, {size}]: it belongs to another base model"
        )
    if embeddings.dtype not in DTYPES:
        raise AdapterError(f"{EMBEDDINGS} has {embeddings.dtype}; floating-point numbers are supported")
    if not all_finite(embeddings):
        raise AdapterError(f"{EMBEDDINGS} has values that are not finite")
    return embeddings
