"""Folders of tiny models that take pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_pictures import Family, tiny_models


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    """The folder of a family's tiny model, which is written once."""
    return tiny_models(tmp_path_factory)
