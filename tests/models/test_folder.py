import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server.models import ModelSourceError, resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model-1.safetensors").write_bytes(b"weights")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_model_folder_is_itself(model: Path) -> None:
    assert resolve(str(model)) == model


def test_a_folder_is_copied_to_where_it_is_wanted(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "there/model"
    assert resolve(str(model), place) == place
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert resolve(str(model), place) == place


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda folder: (folder / "config.json").unlink(),
            "there is no config.json in {folder} (there are model.safe",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "*.safetensors missing in {folder}"),
        (sharded, "model-2.safetensors missing in {folder}"),
        (lambda folder: (folder / "config.json").write_text("{"), "the JSON in {folder} cannot be read"),
    ],
)
def test_a_folder_that_is_no_model_says_what_is_missing(
    model: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(model)
    with pytest.raises(ModelSourceError) as refused:
        resolve(str(model))
    assert words.format(folder=model) in str(refused.value)


def test_a_file_is_no_model(model: Path) -> None:
    with pytest.raises(ModelSourceError, match="is a file, not a folder"):
        resolve(str(model / "config.json"))


def test_a_place_that_holds_something_else_is_left_alone(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "letters.txt").write_text("mine")
    with pytest.raises(ModelSourceError, match="not fetched by this command"):
        resolve(str(model), place)
    assert [path.name for path in place.iterdir()] == ["letters.txt"]


def test_a_place_that_holds_another_model_is_left_alone(model: Path, tmp_path: Path) -> None:
    place = resolve(str(model), tmp_path / "place")
    other = tmp_path / "other"
    model.rename(other)
    with pytest.raises(ModelSourceError, match=f"holds another model, {model}"):
        resolve(str(other), place)


def test_a_place_that_cannot_be_written_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelSourceError, match="cannot be written to"):
        resolve(str(model), tmp_path / "file/model")
