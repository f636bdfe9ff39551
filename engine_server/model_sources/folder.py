"""Validation of model folders: config.json and every safetensors file that the index lists."""

import json
import math
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from engine_server.contract.cluster.model_folder import no_model
from engine_server.model_sources.errors import UnusableModelError

CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"
# The files of a repository or bucket that make a model, and those with the same weights in formats that are not used.
USED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
UNUSED = ["original/*", "onnx/*", "consolidated*"]


def is_used(name: str) -> bool:
    """Return True for a file that is fetched, by its path in the repository or bucket."""
    return any(fnmatch(name, each) for each in USED) and not any(fnmatch(name, each) for each in UNUSED)


def is_weights(name: str) -> bool:
    """Return True for a file of weights, or the index of several."""
    return name.endswith(".safetensors") or name == INDEX


def check(folder: Path, uri: str, weights: bool = True) -> Path:
    """Return `folder` if it holds a model that the engine can load. Raises ModelSourceError.

    weights: require the weights, not only the configuration.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UnusableModelError(
            f"{uri}: {folder} {what}; a model is a folder with {CONFIG} and *.safetensors"
        )
    if not (folder / CONFIG).is_file():
        raise UnusableModelError(f"{uri}: {no_model(str(folder), _listing(folder))}")
    try:
        json_object(folder / CONFIG)
        missing = [name for name in _weights(folder) if weights and not (folder / name).is_file()]
    except ValueError as error:
        raise UnusableModelError(f"{uri}: the JSON in {folder} cannot be read: {error}") from error
    if missing:
        raise UnusableModelError(f"{uri}: {', '.join(missing[:3])} missing in {folder} ({_listing(folder)})")
    return folder


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ValueError, which names the file."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


def _weights(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        places = json_object(folder / INDEX).get("weight_map")
        names = list(places.values()) if isinstance(places, dict) else []
        if not names or not all(isinstance(name, str) and is_inside(name) for name in names):
            raise ValueError(f"{INDEX} has no weight_map of names of files beside it")
        return sorted(set(names))
    return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]


def is_inside(name: str) -> bool:
    """Return True for a path of a file that is relative to a model's folder, and stays in it."""
    path = PurePosixPath(name)
    return name != "" and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model: those that its index lists, or all."""
    if (folder / INDEX).is_file():
        return [folder / name for name in _weights(folder)]
    return sorted(folder.glob("*.safetensors"))


def open_weights(path: Path, framework: str) -> Any:
    """Open a safetensors file, whose header is then known to describe its whole content, and no more.

    framework: pt or np. Raises ValueError for a damaged file, by name.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path.name} is no readable safetensors file: {error}") from error


def weight_bytes(folder: Path, item_bytes: int | None) -> int:
    """Return the size of the weights in memory, from the files' headers.

    item_bytes: the size of each number after loading; None: as stored. Raises ValueError for a damaged file.
    """
    total = 0
    for path in weight_files(folder):
        open_weights(path, "np")
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                total += math.prod(tensor["shape"]) * item_bytes if item_bytes else end - start
    return total


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if not names:
        return "the folder is empty"
    return f"there are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
