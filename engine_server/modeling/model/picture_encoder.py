"""The rows of embeddings that a model makes of a picture."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.refusal import ERRORS


@torch.inference_mode()
def picture_rows(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the embeddings [rows, hidden] of a picture's tokens, of all its tiles, in the dtype of the text's.

    inputs: what the model's `get_image_features` takes, by name; a batch of one picture. Raises ValueError for those
    that it can't take.
    """
    embedding: Any = model.get_input_embeddings()
    given = {
        name: value.to(model.device, model.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    try:
        features = backbone(model).get_image_features(**given, return_dict=True).pooler_output
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except ERRORS as error:
        raise ValueError(f"the model's encoder doesn't take the picture: {error}") from error
    tiles = [features] if isinstance(features, Tensor) else features
    rows = torch.cat([tile.reshape(-1, embedding.embedding_dim) for tile in tiles])
    if not rows.isfinite().all():
        raise ValueError("the model's encoder makes numbers of the picture that are not finite")
    return rows.to(model.dtype)
