"""Folders of tiny models that take pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_pictures import Family, tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    """The folder of a family's tiny model, which is written once."""
    folders: dict[Family, Path] = {}

    def folder_of(family: Family) -> Path:
        if family not in folders:
            folders[family] = tiny_model(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return folder_of
