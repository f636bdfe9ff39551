"""The part of a model between its tokens and its head."""

from typing import Any

from transformers import PreTrainedModel


def backbone(model: PreTrainedModel) -> Any:
    """Return the module that computes a model's hidden states; the model itself if it has no head."""
    base: Any = model.base_model
    if isinstance(base, PreTrainedModel):
        return base
    # ModernBERT's decoder has its head where transformers expects the base model.
    return next(child for child in model.children() if isinstance(child, PreTrainedModel))
