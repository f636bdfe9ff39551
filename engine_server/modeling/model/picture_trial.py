"""The proof that a picture acts on a prompt by the embeddings in its places alone, on a small random copy of the model.

Other models give the tokens of a picture other positions or masks, or add to states within the decoder; computed from
embeddings, they would answer wrongly.
"""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.loader.attention import for_text
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.encoder import encoder_parts
from engine_server.modeling.loader.refusal import ERRORS
from engine_server.modeling.loader.sample import copy_with_encoder
from engine_server.modeling.model.picture_encoder import picture_rows
from engine_server.modeling.model.split_model import find_decoder
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.processor import PictureProcessor

# Width and height of the trial's picture.
SIDE = 64
# Tokens around it.
BEFORE, AFTER = [5, 9, 3], [7, 2]
# Arguments that mark the tokens of pictures with 1, where a model's forward has them.
MARKS = ("mm_token_type_ids", "token_type_ids")


def refusal_by_trial(model: PreTrainedModel, folder: Path) -> str:
    """Return why a loaded model takes no pictures; "" if it does.

    folder: the model's, in which its processor is described.
    """
    if not encoder_parts(model):
        return f"{type(model).__name__} has no encoder of pictures"
    try:
        processor = processor_of_few_tiles(folder)
        text, arrays = processor.process(sample_picture())
        inputs = {name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()}
        copy = nn.Module.float(copy_with_encoder(model, model.device))
        copy.set_attn_implementation(for_text(copy.config, "eager"))
        encode_once(copy, inputs)
        rows = picture_rows(copy, inputs)
        agree = agrees_with_transformers(copy, inputs, rows)
    except UnsupportedPicturesError as error:
        return str(error)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except ERRORS as error:
        return f"a picture can't be computed by a copy of {type(model).__name__}: {error}"
    placeholders = text.count(processor.image_token)
    if placeholders != len(rows):
        return f"its processor writes {placeholders} placeholders for a picture, and its encoder makes {len(rows)} rows"
    if not agree:
        return (
            f"a copy of {type(model).__name__} computes a prompt with a picture otherwise than from the picture's "
            "embeddings in the places of its tokens"
        )
    return ""


def processor_of_few_tiles(folder: Path) -> PictureProcessor:
    """Return a model's processor, with a size of pictures that leaves little to encode, where it takes such a size.

    Raises UnsupportedPicturesError if the model's own settings don't process pictures.
    """
    processor = PictureProcessor.of_folder(folder)
    try:
        return PictureProcessor.of_folder(folder, {"size": {"longest_edge": SIDE}})
    except UnsupportedPicturesError:
        return processor


def sample_picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@torch.inference_mode()
def encode_once(copy: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    """Run the encoder on a picture, and make it return the same for each further picture."""
    whole = backbone(copy)
    output = whole.get_image_features(**inputs, return_dict=True)
    whole.get_image_features = lambda *_args, **_options: output


@torch.inference_mode()
def agrees_with_transformers(copy: PreTrainedModel, inputs: dict[str, Tensor], rows: Tensor) -> bool:
    """Compare the states of a prompt that has a picture's rows with those that transformers computes of the picture."""
    whole, decoder = backbone(copy), find_decoder(copy)
    picture_token: int = copy.config.image_token_id
    tokens = [*BEFORE, *[picture_token] * len(rows), *AFTER]
    token_ids = torch.tensor([tokens], device=copy.device)
    of_picture = token_ids == picture_token
    marks = {name: of_picture.long() for name in MARKS if name in signature(whole.forward).parameters}
    expected: Tensor = whole(input_ids=token_ids, **inputs, **marks, use_cache=False)[0]
    embedding: Any = copy.get_input_embeddings()
    embeds = embedding(token_ids)
    embeds[of_picture] = rows
    positions = torch.arange(len(tokens), device=copy.device)[None]
    found: Tensor = decoder(inputs_embeds=embeds, position_ids=positions, use_cache=False)[0]
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.std().item())
