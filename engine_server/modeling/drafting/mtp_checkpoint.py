"""Multi-token prediction modules as they are published: further tensors in the files of their target."""

import logging
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.model_sources.hf_config import read_hf_config
from engine_server.modeling.drafting.draft_head import num_layers
from engine_server.modeling.drafting.mtp import LAYOUTS, MtpHead, MtpLayout, model_class
from engine_server.modeling.drafting.reading import open_weights, plan_for, read_module
from engine_server.modeling.platform.interface import Platform

logger = logging.getLogger(__name__)


def load_mtp(target: PreTrainedModel, config: ModelConfig, load: LoadConfig, platform: Platform) -> MtpHead:
    """Return the first multi-token prediction module in a target's own files, bound to it.

    config: the target's. Raises ValueError if there is none, or if it can't be read.
    """
    folder, count = Path(config.path), num_layers(target)
    try:
        settings = read_hf_config(folder, config.hf_overrides, config.trust_remote_code)
        stored = open_weights(folder, settings, load, target.dtype)
        layout = find_layout(stored, count)
        start = layout.start(count)
        weights = {
            own: tensor
            for name, tensor in stored.items()
            if name.startswith(start) and (own := layout.own_name(name.removeprefix(start)))
        }
        module = read_module(
            model_class(target, layout),
            extended_config(target),
            weights,
            lambda own: start + layout.published_name(own),
            target.dtype,
            plan_for(target, platform, load),
            config.max_model_len,
        )
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"the multi-token prediction module in {folder} can't be loaded: {error}") from error
    return MtpHead(module, target)


def find_layout(names: Iterable[str], count: int) -> MtpLayout:
    """Return the layout of the module in a target's files, by their tensors' names. Raises ValueError for none.

    count: the number of the target's decoder layers.
    """
    names = tuple(names)
    for model, layout in LAYOUTS.items():
        if any(name.startswith(layout.start(count)) for name in names):
            logger.info("multi-token prediction: the first module, in the layout of %s", model)
            return layout
    starts = ", ".join(layout.start(count) for layout in LAYOUTS.values())
    raise ValueError(f"its files have none: the name of no tensor starts with one of {starts}")


def extended_config(target: PreTrainedModel) -> Any:
    """Return a target's config with one more decoder layer, which attends to all tokens."""
    config = deepcopy(target.config.get_text_config())
    config.num_hidden_layers += 1
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [*config.layer_types, "full_attention"]
    return config
