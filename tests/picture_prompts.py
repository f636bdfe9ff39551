"""Prompts with pictures for tiny models, and what transformers answers to them."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import transformers
from instant_pictures import InstantPictures, finished
from PIL import Image

from engine_server.modeling.pictures.processor import PictureProcessor
from engine_server.requests.messages import RawTensor
from engine_server.requests.pictures import Picture, PlaceholderRun, ProcessedPicture, PromptPicture
from engine_server.requests.prompts import TokensPrompt


def random_image(seed: int, width: int, height: int) -> Image.Image:
    pixels = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.to(torch.uint8).numpy(), "RGB")


@dataclass
class InlinePictures(InstantPictures):
    """Pictures that this process has made, which are processed without a fork.

    digests: of the pictures that were processed, in order.
    """

    processor: PictureProcessor
    images: dict[str, Image.Image] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    # What the encoder gets in place of a picture's own inputs, by digest.
    faults: dict[str, dict[str, RawTensor]] = field(default_factory=dict)

    @property
    def template_token(self) -> str:
        return self.processor.template_token

    @property
    def image_token(self) -> str:
        return self.processor.image_token

    @property
    def media_tokens(self) -> tuple[str, ...]:
        return self.processor.media_tokens

    def digest(self, picture: Picture) -> str:
        return picture.sha256

    def replacement(self, digest: str) -> str | None:
        return None

    def add(self, image: Image.Image) -> Picture:
        digest = sha256(image.tobytes() + repr(image.size).encode()).hexdigest()
        self.images[digest] = image
        return Picture(b"", digest)

    def processed(self, picture: Picture) -> ProcessedPicture:
        replacement, arrays = self.processor.process(self.images[picture.sha256])
        inputs = {name: RawTensor.of(torch.from_numpy(array)) for name, array in arrays.items()}
        return ProcessedPicture(replacement, self.faults.get(picture.sha256, inputs))

    def describe(self, picture: Picture, caller: str | None) -> Future[str]:
        return finished(self.processed(picture).replacement)

    def process(self, picture: Picture, caller: str | None) -> Future[ProcessedPicture]:
        self.digests.append(picture.sha256)
        return finished(self.processed(picture))


class PictureModel:
    """A tiny model in a folder, with the processor of its pictures and transformers' own model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pictures = InlinePictures(PictureProcessor.of_folder(folder))
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.image_token_id: int = self.tokenizer.convert_tokens_to_ids(self.pictures.image_token)
        kind: Any = transformers.AutoModelForImageTextToText
        self.model: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def prompt(self, parts: Sequence[str | Image.Image], **more: Any) -> TokensPrompt:
        """Return the prompt of text and pictures in their order."""
        token_ids: list[int] = []
        pictures: list[PromptPicture] = []
        for part in parts:
            if isinstance(part, str):
                token_ids += self.encode(part)
                continue
            picture = self.pictures.add(part)
            processed = self.pictures.processed(picture)
            own = self.encode(processed.replacement)
            runs = runs_of(own, self.image_token_id, len(token_ids))
            pictures.append(PromptPicture(picture, picture.sha256, runs))
            token_ids += own
        return {"prompt_token_ids": token_ids, "pictures": pictures, **more}

    def expected(self, parts: Sequence[str | Image.Image], max_tokens: int) -> tuple[list[int], list[int]]:
        """Return the tokens of the prompt and of the answer, by transformers alone."""
        token = self.pictures.template_token
        text = "".join(part if isinstance(part, str) else token for part in parts)
        images = [part for part in parts if not isinstance(part, str)]
        if images:
            found = self.pictures.processor._processor(
                images=images, text=text, return_tensors="pt", add_special_tokens=False
            )
        else:
            found = {"input_ids": torch.tensor([self.encode(text)])}
        known = {
            name: value
            for name, value in found.items()
            if name not in ("token_type_ids", "mm_token_type_ids")
        }
        prompt: list[int] = found["input_ids"][0].tolist()
        with torch.inference_mode():
            answer = self.model.generate(**known, max_new_tokens=max_tokens, do_sample=False)
        return prompt, answer[0, len(prompt) :].tolist()


def runs_of(token_ids: Sequence[int], image_token_id: int, offset: int) -> tuple[PlaceholderRun, ...]:
    """Return the runs of placeholders in a replacement, which begins at `offset` in its prompt."""
    runs: list[PlaceholderRun] = []
    for place, token in enumerate(token_ids, offset):
        if token != image_token_id:
            continue
        if runs and runs[-1].start + runs[-1].length == place:
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(PlaceholderRun(place, 1))
    return tuple(runs)
