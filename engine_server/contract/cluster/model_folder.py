"""The folder of a pod's model, and the words by which an engine reports that it holds none.

The operator finds them in the engine's last output.
"""

MODEL_FOLDER = "/models/model"
_WORDS = "there is no config.json in"


def no_model(folder: str, content: str) -> str:
    """Return the words about a folder without a model, and its content for people."""
    return f"{_WORDS} {folder} ({content})"


def reports_no_model(output: str) -> bool:
    """Return True if the output of a pod's engine has these words about the pod's model."""
    return f"{_WORDS} {MODEL_FOLDER} (" in output
