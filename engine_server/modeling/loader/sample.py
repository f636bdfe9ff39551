"""The two-layer random copy of a model on which replacements are verified.

The copy has the model's own config and classes, and enough layers to include every kind: two in most models. Its
linear layers have one non-zero weight per row and its experts none, so that it is built and run in milliseconds for
any size of model. Its windows and chunks are so short that a few tokens go beyond them. A second copy, of models that
take pictures, has an encoder.
"""

import re
import sys
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.layers.experts import has_experts
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.layers.weight_layer import derived_class, original_class
from engine_server.modeling.loader.encoder import encoder_parts, remove_encoder
from engine_server.modeling.loader.weights import replace_linears

# Rows of the copy's embeddings, more than the token ids and positions of a run need.
NUM_ROWS = 64
# Elements of a parameter that is random throughout; a larger one repeats its last dimension.
MOST_RANDOM = 1 << 22
# The ends of names of settings that limit how many earlier tokens a token sees.
WINDOW_SETTING = re.compile(r"(window|chunk|local_attention)(_size|_len|_length)?$")
# Settings that have an entry for each layer.
TYPES_OF_LAYERS = ("layer_types", "layers_block_type")
# Parameters whose exponential is the rate at which a state is forgotten: the copy's keeps it for many tokens.
DECAY, SLOWER = "A_log", 4.0
# The copy's windows and chunks, in tokens.
WINDOW = 3


class SampleFormat(WeightFormat):
    """A matrix with one non-zero weight per row: each output is one input times a factor."""

    def __init__(self, columns: Tensor, factors: Tensor) -> None:
        """columns: int64 [out], the weights' columns; factors: [out], the weights."""
        self.columns = columns
        self.factors = factors

    @classmethod
    def of(cls, linear: Linear, number: int, device: torch.device) -> Self:
        """Return a matrix with the shape of `linear`, a different one for each `number`."""
        rows = torch.arange(linear.out_features, device=device)
        factors = torch.cos(rows + number).to(linear.weight.dtype)
        return cls((rows * 7919 + number) % linear.in_features, factors)

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        return cls(torch.cat([one.columns for one in formats]), torch.cat([one.factors for one in formats]))

    def parameters(self) -> dict[str, nn.Parameter]:
        return {}

    def apply(self, values: Tensor) -> Tensor:
        return values.index_select(-1, self.columns) * self.factors


class SampleExperts(nn.Module):
    """Experts without weights."""

    def forward(self, hidden_states: Tensor, *_args: Any, **_options: Any) -> Tensor:
        return hidden_states.roll(1, -1)


def sample_copy(model: PreTrainedModel, device: torch.device, context: int = sys.maxsize) -> PreTrainedModel:
    """Return a copy of `model`, which may be on the meta device, with the classes that transformers gave it.

    It has no encoder of pictures. context: the longest sequence, in tokens; longer windows and chunks have no effect,
    and keep their lengths.
    """
    copy = empty_copy(model, sample_config(model, context))
    remove_encoder(copy)
    return filled(copy, [module for module in copy.modules() if isinstance(module, nn.Embedding)], device)


def copy_with_encoder(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Return a copy of `model` that takes pictures, whose encoder has few layers too.

    The token of pictures is the last one that has an embedding.
    """
    config = sample_config(model, context=0)
    config.image_token_id = NUM_ROWS - 1
    feature_layers = getattr(config, "vision_feature_layer", None) or -1
    deepest = max(map(abs, feature_layers if isinstance(feature_layers, list) else [feature_layers]))
    if layers := getattr(config.vision_config, "num_hidden_layers", None):
        config.vision_config.num_hidden_layers = min(layers, max(2, deepest))
    copy = empty_copy(model, config)
    return filled(copy, [copy.get_input_embeddings()], device)


def empty_copy(model: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model of transformers of the class of `model` on the meta device."""
    kind: Any = original_class(model)
    with torch.device("meta"):
        copy: PreTrainedModel = kind._from_config(config, dtype=model.dtype)
    copy.train(False)
    return copy


def filled(copy: PreTrainedModel, shortened: Collection[nn.Module], device: torch.device) -> PreTrainedModel:
    """Give random weights to a model on the meta device. shortened: embeddings that get a few rows only."""
    replace_linears(copy, as_loaded)
    encoder = {module for part in encoder_parts(copy) for module in part.module.modules()}
    others = []
    for number, module in enumerate(copy.modules()):
        if isinstance(module, Linear):
            module.format = SampleFormat.of(module, number, device)
        elif has_experts(module) and module not in encoder:
            module.__class__ = derived_class((SampleExperts, type(module)), type(module))
        else:
            others.append(module)
    for module in others:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    copy.initialize_weights()  # type: ignore[no-untyped-call]  # computes the buffers; parameters have no values yet
    generator = torch.Generator().manual_seed(0)
    for module in others:
        if isinstance(module, nn.Embedding) and module in shortened:
            shorten(module)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                values = random_values(name, parameter, generator).to(device)
                module._parameters[name] = nn.Parameter(values.expand(parameter.shape), requires_grad=False)
    return copy.requires_grad_(False)


def sample_config(model: PreTrainedModel, context: int) -> PreTrainedConfig:
    """Return the config of a copy with at least one layer of each kind."""
    config = deepcopy(model.config)
    text, count = config.get_text_config(), num_layers(model)
    shared = getattr(text, "num_kv_shared_layers", None)
    if shared:  # the last ones
        text.num_kv_shared_layers = max(shared + count - text.num_hidden_layers, 0)
    text.num_hidden_layers = count
    for name in TYPES_OF_LAYERS:
        # Of some configs a property, which follows the number of layers; of others the number follows the types.
        if vars(text).get(name) is not None:
            setattr(text, name, list(vars(text)[name])[:count])
    for name in window_settings(text, context):
        setattr(text, name, WINDOW)
    return config


def window_settings(text: PreTrainedConfig, context: int) -> list[str]:
    """Return the names of a config's settings that limit how many tokens of `context` a token sees."""
    return [
        name
        for name, value in vars(text).items()
        if type(value) is int and WINDOW < value < context and WINDOW_SETTING.search(name)
    ]


def shortened_settings(text: PreTrainedConfig) -> list[str]:
    """Return the names of a copy's settings that `sample_config` shortened."""
    return [name for name, value in vars(text).items() if value == WINDOW and WINDOW_SETTING.search(name)]


def num_layers(model: PreTrainedModel) -> int:
    """Return the smallest number of first layers that include each kind."""
    total: int = model.config.get_text_config().num_hidden_layers
    stacks = (
        module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == total
    )
    firsts = {0}
    for stack in stacks:
        kinds = [tuple(type(module) for module in layer.modules()) for layer in stack]
        firsts.update(kinds.index(kind) for kind in set(kinds))
    return min(total, max(1, *firsts) + 1)


def shorten(embedding: nn.Embedding) -> None:
    """Leave a few rows of an embedding on the meta device."""
    embedding.weight = nn.Parameter(embedding.weight[: min(embedding.num_embeddings, NUM_ROWS)])
    embedding.padding_idx = None


def random_values(name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Return values for a parameter, or for its last dimension, which a large one repeats."""
    shape = parameter.shape if parameter.numel() <= MOST_RANDOM else parameter.shape[-1:]
    values = torch.rand(shape, generator=generator) + 0.5
    return (values - SLOWER if name.endswith(DECAY) else values).to(parameter.dtype)
