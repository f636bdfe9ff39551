"""The folders of a pod in which volumes hold its model, and the words by which an engine reports that there is none.

The operator finds them in the engine's last output.
"""

import re
from pathlib import PurePath

MODEL_FOLDER = "/models/model"
# The whole claim that holds the model, in pods with adapters, which lie beside it.
CLAIM_FOLDER = "/models/claim"
_WORDS = "there is no config.json in"


def volume_of(path: PurePath) -> str | None:
    """Return the folder of a pod's volume that a path lies in, None if it lies in neither."""
    return next((folder for folder in (MODEL_FOLDER, CLAIM_FOLDER) if path.is_relative_to(folder)), None)


def no_model(folder: str, content: str) -> str:
    """Return the words about a folder without a model, and its content for people."""
    return f"{_WORDS} {folder} ({content})"


def reports_no_model(output: str) -> bool:
    """Return True if the output of a pod's engine has these words about the pod's model."""
    return re.search(rf"{_WORDS} {re.escape(MODEL_FOLDER)}(/.*)? \(", output) is not None
