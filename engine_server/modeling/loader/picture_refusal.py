"""The models that take no pictures, as far as their settings show it: their encoders are not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.config import ModelConfig
from engine_server.config.start_facts import TEXT_ALONE

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def refusal_by_settings(config: ModelConfig, settings: PreTrainedConfig) -> str:
    """Return why a model takes no pictures, or "" if nothing in its settings says so.

    settings: those in the model's folder.
    """
    vision, text = getattr(settings, "vision_config", None), settings.get_text_config()
    if vision is None:
        return TEXT_ALONE
    if config.language_model_only:
        return "language_model_only is set, so that its encoder of pictures is not loaded"
    if config.pooling is not None:
        return "pooling models take text alone"
    if "mrope_section" in (getattr(text, "rope_parameters", None) or ()):
        return "positions on several axes, which its tokens of pictures have, are not supported"
    if getattr(vision, "deepstack_visual_indexes", None):
        return "its encoder adds to states within the decoder (deepstack), which is not supported"
    if getattr(text, "hidden_size_per_layer_input", None):
        return "its layers have inputs by token, which is not supported for pictures"
    if getattr(text, "use_bidirectional_attention", None):
        return "its tokens of a picture attend to later ones, which is not supported"
    return ""
