"""EAGLE-3 heads as they are published: a folder with config.json and safetensors files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.model_sources.folder import weight_files
from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.drafting.draft_head import num_layers
from engine_server.modeling.drafting.eagle3 import Eagle3Head, Eagle3Model
from engine_server.modeling.drafting.eagle3_settings import auxiliary_layers, check_target, read_settings
from engine_server.modeling.drafting.reading import open_weights, plan_for, read_module
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight
from engine_server.modeling.platform.interface import Platform

# The two starts of the names of the head's decoder layer.
LAYER, OTHER_LAYER = "midlayer.", "layers.0."
EMBEDDING = "embed_tokens.weight"
# The tables between vocabularies: the distance of each of the head's tokens to the target's token, and a flag for
# each of the target's tokens, which is set if the head has it.
TO_TARGET, IN_DRAFT = "d2t", "t2d"


def load_eagle3(
    folder: Path, target: PreTrainedModel, config: ModelConfig, load: LoadConfig, platform: Platform
) -> Eagle3Head:
    """Return the head in a folder, bound to its target, in whose dtype it computes.

    config: the target's. Raises ValueError for a folder that can't be read, and for a head of another target.
    """
    try:
        check_files(folder)
        settings = read_settings(folder)
        check_target(settings, target)
        weights = {
            LAYER + name.removeprefix(OTHER_LAYER) if name.startswith(OTHER_LAYER) else name: tensor
            for name, tensor in open_weights(folder, settings, load, target.dtype).items()
        }
        tables = {name: weights.pop(name) for name in (TO_TARGET, IN_DRAFT) if name in weights}
        tokens = target_tokens(tables, settings.draft_vocab_size, settings.vocab_size)
        settings.has_embedding = EMBEDDING in weights
        if not settings.has_embedding and settings.hidden_size != settings.target_hidden_size:
            raise ValueError(
                f"its files have no {EMBEDDING}; the target's has {settings.target_hidden_size} columns, and "
                f"hidden_size is {settings.hidden_size}"
            )
        layers = auxiliary_layers(settings, num_layers(target))
        plan = plan_for(empty_llama(settings, target.dtype), platform, load)
        module = read_module(Eagle3Model, settings, weights, str, target.dtype, plan, config.max_model_len)
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"the EAGLE-3 head in {folder} can't be loaded: {error}") from error
    return Eagle3Head(module, target, layers, None if tokens is None else tokens.to(platform.device))


def empty_llama(settings: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model on the meta device with the modules of a head, on which their replacements are verified."""
    kind: Any = LlamaForCausalLM
    with torch.device("meta"):
        llama: PreTrainedModel = kind._from_config(settings, dtype=dtype, attn_implementation=IMPLEMENTATION)
    return llama


def check_files(folder: Path) -> None:
    """Raise ValueError, with a remedy, for a folder without safetensors files."""
    if weight_files(folder):
        return
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if not pickles:
        raise ValueError("it has no *.safetensors")
    raise ValueError(
        f"{pickles[0]} is a pickle, which could run code and is not read; write its tensors to model.safetensors with "
        "safetensors.torch.save_file(torch.load(file, weights_only=True), ...)"
    )


def target_tokens(
    tables: Mapping[str, StoredTensor | StoredWeight], draft_vocabulary: int, vocabulary: int
) -> Tensor | None:
    """Return the target's token for each of the head's, int64 [draft vocabulary]; None: they are the same.

    Raises ValueError for tables that don't fit the sizes, or each other.
    """
    distances = tables.get(TO_TARGET)
    if distances is None:
        if draft_vocabulary != vocabulary:
            raise ValueError(
                f"its files have no {TO_TARGET}, which maps the {draft_vocabulary} tokens of draft_vocab_size to the "
                f"target's {vocabulary}"
            )
        return None
    assert isinstance(distances, StoredTensor)
    distances.check(("I64", "I32"), [draft_vocabulary])
    tokens = torch.arange(draft_vocabulary) + distances[...].long()
    outside = tokens[(tokens < 0) | (tokens >= vocabulary)].tolist()
    if outside:
        raise ValueError(
            f"{TO_TARGET} maps to the token {outside[0]}; the target's vocabulary has {vocabulary}"
        )
    if len(set(tokens.tolist())) < draft_vocabulary:
        raise ValueError(f"{TO_TARGET} maps several tokens to one of the target's")
    flags = tables.get(IN_DRAFT)
    if flags is not None:
        assert isinstance(flags, StoredTensor)
        flags.check(("BOOL", "U8", "I32", "I64"), [vocabulary])
        if flags[...].nonzero().flatten().tolist() != sorted(tokens.tolist()):
            raise ValueError(f"{TO_TARGET} and {IN_DRAFT} name different tokens of the target")
    return tokens
