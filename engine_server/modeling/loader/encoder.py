"""The part of a model that turns pictures into rows of embeddings, of which the passes and their checks see nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel


class EncoderPart(NamedTuple):
    """A child of a module around the decoder: a vision tower, or a projector to the decoder's embeddings."""

    parent: nn.Module
    name: str
    module: nn.Module


def encoder_parts(model: PreTrainedModel) -> list[EncoderPart]:
    """Return the modules of a model with a vision part that are beside the decoder: empty if it has none."""
    settings = model.config
    if getattr(settings, "vision_config", None) is None:
        return []
    if getattr(settings.get_text_config(), "hidden_size_per_layer_input", None):
        return []  # some of these models (Gemma 3n) compute a text's tokens with them too
    whole: Any = model
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()
    parts: list[EncoderPart] = []
    parent: nn.Module = whole.base_model
    while parent is not decoder:
        inside = next((child for child in parent.children() if decoder in child.modules()), None)
        if inside is None:
            return []
        parts += [
            EncoderPart(parent, name, child)
            for name, child in parent.named_children()
            if child is not inside and child is not head
        ]
        parent = inside
    return parts


def remove_encoder(model: PreTrainedModel) -> list[EncoderPart]:
    """Remove the encoder from a model, which still computes text, and return its parts."""
    parts = encoder_parts(model)
    for part in parts:
        del part.parent._modules[part.name]
    return parts


@contextmanager
def encoder_aside(model: PreTrainedModel) -> Iterator[list[EncoderPart]]:
    """Remove the encoder from a model for a while, so that what walks the model's modules sees those of text alone."""
    parts = remove_encoder(model)
    try:
        yield parts
    finally:
        for part in parts:
            part.parent._modules[part.name] = part.module
