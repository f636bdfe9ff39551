"""What makes a folder a model: config.json and every safetensors file that it speaks of."""

import json
from pathlib import Path

from engine_server.models.errors import ModelSourceError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


def check(folder: Path, uri: str) -> Path:
    """`folder` itself, if the engine can load it."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ModelSourceError(f"{uri}: {folder} {what}; a model is a folder with {CONFIG} and *.safetensors")
    if not (folder / CONFIG).is_file():
        raise ModelSourceError(f"{uri}: there is no {CONFIG} in {folder} ({_listing(folder)})")
    try:
        json.loads((folder / CONFIG).read_bytes())
        missing = [name for name in _weights(folder) if not (folder / name).is_file()]
    except ValueError as error:
        raise ModelSourceError(f"{uri}: the JSON in {folder} cannot be read: {error}") from error
    if missing:
        raise ModelSourceError(f"{uri}: {', '.join(missing[:3])} missing in {folder} ({_listing(folder)})")
    return folder


def _weights(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        return sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if not names:
        return "the folder is empty"
    return f"there are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
