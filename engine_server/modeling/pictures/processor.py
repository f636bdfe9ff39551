"""transformers' processor of pictures, made without what videos need."""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import transformers
from PIL import Image
from transformers.image_processing_backends import PilBackend
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]

from engine_server.model_sources.folder import CONFIG, TOKENIZER_CONFIG, json_object
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.pixtral import PixtralPlaceholders

# Classes of ours, by the names of those whose modules import torchvision.
REPLACED = {"PixtralProcessor": PixtralPlaceholders}
# Files that may name the processor's class, in the order in which transformers reads them.
NAMING_FILES = ("processor_config.json", "preprocessor_config.json", TOKENIZER_CONFIG)
OPTIONS = ("size",)
# Width and height of a picture of low detail, at most.
LOW_DETAIL = 512
# Tokens that have to do with media, and attributes that hold such tokens, by parts of their names.
MEDIA = re.compile(
    r"image|img|picture|vision|video|audio|speech|frame|patch|tile|row_\d+_col_\d+", re.IGNORECASE
)
# What a processor returns for the text around a picture.
OF_TEXT = {"input_ids", "token_type_ids", "attention_mask", "mm_token_type_ids"}


class PictureProcessor:
    """The processor in a model's folder, which uses Pillow and never torchvision."""

    def __init__(self, processor: Any, options: Mapping[str, Any]) -> None:
        self._processor = processor
        self._options = dict(options)
        self._scales_by_pixels = False
        # What a template writes for a picture, and what stands for one row of it; the same for most models.
        self.template_token: str = processor.image_token
        self.image_token = token_of_rows(processor)
        # All texts that have to do with media.
        self.media_tokens = media_tokens(processor)

    @classmethod
    def of_folder(cls, folder: Path, options: Mapping[str, Any] = {}) -> Self:
        """Make the processor of a model, and process pictures with it. Raises UnsupportedPicturesError.

        options: settings of the image processor, in place of those in the folder.
        """
        for option in options:
            if option not in OPTIONS:
                raise UnsupportedPicturesError(
                    f"the processor of pictures takes no option {option!r}; it takes {', '.join(OPTIONS)}"
                )
        name = class_name(folder)
        try:
            processor = cls(make_processor(name, folder, options), options)
            processor.find_scaling()
            processor.check_independence()
        except UnsupportedPicturesError:
            raise
        except Exception as error:  # of the files in the folder, of the options, or of a missing library
            raise UnsupportedPicturesError(
                f"{name} does not process pictures{with_options(options)}: {error}"
            ) from error
        return processor

    @cached_property
    def settings_digest(self) -> str:
        """sha256 over the processor's class, its settings and the options, in hexadecimal digits."""
        settings = json.dumps([self._processor.to_dict(), self._options], sort_keys=True, default=str)
        return hashlib.sha256(settings.encode()).hexdigest()

    def find_scaling(self) -> None:
        """Find out whether there is more to process of a larger picture of the same shape."""
        small, large = (
            self.process(Image.new("RGB", (side, side)))[1] for side in (LOW_DETAIL, 2 * LOW_DETAIL)
        )
        self._scales_by_pixels = any(large[name].shape != small[name].shape for name in large)

    def check_independence(self) -> None:
        """Raise ValueError if a picture's text in a prompt with another isn't the one that it has alone."""
        image = Image.new("RGB", (LOW_DETAIL, LOW_DETAIL))
        (_, alone), (_, twice) = self._found([image]), self._found([image, image])
        if twice != 2 * alone:
            raise ValueError("the text in the place of a picture depends on the others of its prompt")

    def process(self, image: Image.Image, low_detail: bool = False) -> tuple[str, dict[str, np.ndarray]]:
        """Return a picture's text in a prompt, and what the model's `get_image_features` takes, by name.

        image: in mode RGB.
        low_detail: make it smaller first, where that leaves less to process.

        The text has a placeholder for each row, and wrappers. Raises Exception for a picture that can't be processed.
        """
        if low_detail and self._scales_by_pixels:
            image = image.copy()
            image.thumbnail((LOW_DETAIL, LOW_DETAIL))
        found, (replacement,) = self._found([image])
        if self.image_token not in replacement:
            raise ValueError(f"the text in its place has no {self.image_token}")
        return replacement, {
            name: compact(name, np.asarray(value)) for name, value in found.items() if name not in OF_TEXT
        }

    def _found(self, images: list[Image.Image]) -> tuple[Any, list[str]]:
        """Return what transformers' processor returns for the pictures of a prompt, and the text of each."""
        found = self._processor(
            images=images,
            text=len(images) * self.template_token,
            return_tensors="np",
            return_text_replacement_offsets=True,
        )
        if (offsets := found.pop("text_replacement_offsets", None)) is None:
            raise ValueError("it does not tell the text in the place of a picture")
        return found, [replaced["replacement"] for replaced in offsets[0]]


def compact(name: str, array: np.ndarray) -> np.ndarray:
    """Return numbers as float32, and a mask as bools, an eighth of the bytes that processors give it."""
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    return array.astype(bool) if name.endswith("_mask") else array


def class_name(folder: Path) -> str:
    """Return the name of the processor's class. Raises UnsupportedPicturesError."""
    try:
        for file in NAMING_FILES:
            if (folder / file).is_file():
                name = json_object(folder / file).get("processor_class")
                if isinstance(name, str):
                    return name
        model_type = json_object(folder / CONFIG).get("model_type")
    except (OSError, ValueError) as error:
        raise UnsupportedPicturesError(f"the processor's settings can't be read: {error}") from error
    default = PROCESSOR_MAPPING_NAMES.get(model_type) if isinstance(model_type, str) else None
    if default is None:
        raise UnsupportedPicturesError(
            f"transformers {transformers.__version__} has no processor for models of type {model_type}"
        )
    return str(default)


def make_processor(name: str, folder: Path, options: Mapping[str, Any]) -> Any:
    """Return a processor that has an image processor and a tokenizer, and None for whatever else it takes."""
    kind: Any = without_other_media(REPLACED.get(name) or library_class(name))
    image_processors: Any = transformers.AutoImageProcessor
    image_processor = image_processors.from_pretrained(
        folder, backend="pil", local_files_only=True, **options
    )
    if not isinstance(image_processor, PilBackend):
        raise UnsupportedPicturesError(
            f"{type(image_processor).__name__} does not process pictures with Pillow"
        )
    # A copy of the model's, since processors add tokens.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    parts = {"image_processor": image_processor, "tokenizer": tokenizer}
    settings, _ = kind.get_processor_dict(folder, local_files_only=True)
    return kind.from_args_and_dict([parts.get(part) for part in kind.get_attributes()], settings)


def library_class(name: str) -> type:
    """Return a processor's class of transformers. Raises UnsupportedPicturesError."""
    found = getattr(transformers, name, None)
    if not isinstance(found, type) or not issubclass(found, transformers.ProcessorMixin):
        raise UnsupportedPicturesError(
            f"transformers {transformers.__version__} has no {name} that does without further packages"
        )
    module = sys.modules[found.__module__]
    if vars(module).get("num2words", str) is None:  # SmolVLM's module asks for it, for videos
        vars(module)["num2words"] = str
    return found


def without_other_media(kind: Any) -> Any:
    """Return a subclass whose instances may have None for their processors of videos and audio."""

    def check_argument_for_proper_class(self: Any, name: str, argument: Any) -> Any:
        return None if argument is None else kind.check_argument_for_proper_class(self, name, argument)

    checks = {
        "check_argument_for_proper_class": check_argument_for_proper_class,
        "__module__": kind.__module__,
    }
    return type(kind.__name__, (kind,), checks)


def token_of_rows(processor: Any) -> str:
    """Return the token of which a picture's text has one for each row."""
    token = processor.tokenizer.added_tokens_decoder.get(getattr(processor, "image_token_id", None))
    return str(token or processor.image_token)


def media_tokens(processor: Any) -> tuple[str, ...]:
    """Return the texts of a tokenizer's added tokens that have to do with media, and what a template writes."""
    tokenizer = processor.tokenizer
    named = vars(processor) | tokenizer.special_tokens_map
    values = {value for name, value in named.items() if isinstance(value, str) and MEDIA.search(name)}
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    found = {text for text in added if text in values or MEDIA.search(text)}
    return tuple(sorted(found | {processor.image_token}))


def with_options(options: Mapping[str, Any]) -> str:
    return f" with the options {json.dumps(dict(options), default=str)}" if options else ""
