"""transformers' own processors of pictures, where its packages for videos are absent."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_pictures import PARTS, Family


def library_processor(family: Family, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """Return the processor of a tiny model as transformers computes, on Pillow's back end."""
    patch.setattr(transformers.ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)
    name = PARTS[family].processor
    if name == "PixtralProcessor":  # its module asks for a function that the other back end has too
        other = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
        patch.setitem(sys.modules, "transformers.models.pixtral.image_processing_pixtral", other)
    module = {"PixtralProcessor": "pixtral"}.get(name, family)
    module = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    if name == "SmolVLMProcessor":
        patch.setattr(module, "num2words", str)
    kind: Any = getattr(module, name)
    parts: dict[str, Any] = {
        "image_processor": transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
        "tokenizer": transformers.AutoTokenizer.from_pretrained(folder),
    }
    settings = json.loads((folder / "processor_config.json").read_text())
    del settings["processor_class"]
    return kind(*(parts.get(part) for part in kind.get_attributes()), **settings)
