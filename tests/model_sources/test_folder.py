import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server.contract.cluster import model_folder
from engine_server.model_sources import ModelSourceError, resolve


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


def test_model_folder_resolves_to_itself(model: Path) -> None:
    assert resolve(str(model)) == model


def test_folder_is_copied_to_the_given_destination(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "there/model"
    assert resolve(str(model), place) == place
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert resolve(str(model), place) == place


@pytest.mark.parametrize(
    ("damage", "words"),
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
def test_incomplete_folder_is_refused_with_the_missing_files(
    model: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(model)
    with pytest.raises(ModelSourceError) as refused:
        resolve(str(model))
    assert words.format(folder=model) in str(refused.value)


@pytest.mark.parametrize("below", ["", "snapshots/0123"])
def test_a_pods_folder_without_a_model_is_reported_in_the_words_that_the_operator_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, below: str
) -> None:
    monkeypatch.setattr(model_folder, "MODEL_FOLDER", str(tmp_path))
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)

    with pytest.raises(ModelSourceError) as refused:
        resolve(str(folder))

    assert model_folder.reports_no_model(f"starting\nfairlead engine: {refused.value}\n")
    assert not model_folder.reports_no_model(f"fairlead engine: {tmp_path}/other: no folder")


@pytest.fixture
def volume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pod's volume with the files of a model."""
    folder = tmp_path / "volume"
    monkeypatch.setattr(model_folder, "MODEL_FOLDER", str(folder))
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs/0a").write_text("{}")
    (folder / "blobs/0b").write_bytes(b"weights")
    return folder


def link_snapshot(volume: Path, **targets: str) -> Path:
    """Return a snapshot as a hub's cache has it, with other targets of its links by the first part of their names."""
    snapshot = volume / "snapshots/0123"
    snapshot.mkdir(parents=True)
    for name, blob in {"config.json": "0a", "model.safetensors": "0b"}.items():
        (snapshot / name).symlink_to(targets.get(name.partition(".")[0], f"../../blobs/{blob}"))
    return snapshot


def test_a_snapshot_of_a_hubs_cache_is_served_from_a_volume(volume: Path) -> None:
    snapshot = link_snapshot(volume)

    assert resolve(str(snapshot)) == snapshot


@pytest.mark.parametrize("part", ["config", "model"])
def test_a_link_out_of_the_volume_is_refused(volume: Path, part: str) -> None:
    outside = volume.parent / "outside"
    outside.write_text("{}")
    snapshot = link_snapshot(volume, **{part: "../../../outside"})

    with pytest.raises(
        ModelSourceError, match=f"{part}.* is a link to {outside}, which is not in the volume"
    ):
        resolve(str(snapshot))


def test_weights_that_an_index_lists_may_not_lie_outside_of_the_volume(volume: Path) -> None:
    snapshot = link_snapshot(volume)
    (snapshot / "a/b").mkdir(parents=True)
    (snapshot / "a/b/c").symlink_to(volume.parent)
    (volume.parent / "model.safetensors").write_bytes(b"weights")
    index = {"weight_map": {"a": "a/b/c/model.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelSourceError, match="which is not in the volume of the model"):
        resolve(str(snapshot))


@pytest.mark.parametrize("part", ["config", "model"])
def test_a_link_to_nothing_is_refused_with_its_target(volume: Path, part: str) -> None:
    snapshot = link_snapshot(volume, **{part: "../../blobs/absent"})

    with pytest.raises(
        ModelSourceError, match=rf"{part}.* is a link to \.\./\.\./blobs/absent, which is not there"
    ):
        resolve(str(snapshot))


def test_file_in_place_of_a_folder_is_refused(model: Path) -> None:
    with pytest.raises(ModelSourceError, match="is a file, not a folder"):
        resolve(str(model / "config.json"))


def test_destination_with_other_content_is_refused_and_kept(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "letters.txt").write_text("mine")
    with pytest.raises(ModelSourceError, match="not fetched by this command"):
        resolve(str(model), place)
    assert [path.name for path in place.iterdir()] == ["letters.txt"]


def test_destination_with_another_model_is_refused_and_kept(model: Path, tmp_path: Path) -> None:
    place = resolve(str(model), tmp_path / "place")
    other = tmp_path / "other"
    model.rename(other)
    with pytest.raises(ModelSourceError, match=f"holds another model, {model}"):
        resolve(str(other), place)


def test_error_names_a_destination_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelSourceError, match="cannot be written to"):
        resolve(str(model), tmp_path / "file/model")
