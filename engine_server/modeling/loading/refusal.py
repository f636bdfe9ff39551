"""The refusal of models that transformers can't build, or that can't run as a flat batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine_server.modeling.attention.interface import UnsupportedModelError

# Errors of code that was not written for the config, or for a flat batch.
ERRORS = (AssertionError, AttributeError, ImportError, IndexError, RuntimeError, TypeError)


@contextmanager
def refused_by_name(name: str) -> Iterator[None]:
    """Raise UnsupportedModelError in place of an error of the model's own code. name: of the model's class."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
        raise UnsupportedModelError(f"{name} can't be built or run: {reason}") from error
