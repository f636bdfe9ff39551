"""The record of a fetch, compared by whoever finds the folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server.model_sources import ModelSourceError, record, resolve, store
from engine_server.model_sources.record import Checksums

WEIGHTS = "model.safetensors"
FILES = {
    "config.json": b"{}",
    "chat_template.jinja": b"hello",
    WEIGHTS: bytes(100),
    "nested/config.json": b"[]",
}


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """Return the folder of a fetched model."""
    folder = tmp_path / "model"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / record.ORIGIN).write_text("hf://org/name\n")
    record.write(folder, Checksums("a" * 40))
    return folder


def leave(folder: Path) -> None:
    pass


def change_a_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"HELLO")


def change_a_nested_file(folder: Path) -> None:
    (folder / "nested/config.json").write_bytes(b"{}")


def remove_the_config_of_a_part(folder: Path) -> None:
    (folder / "nested/config.json").unlink()


def cut_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(bytes(99))


def add_weights(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes(bytes(100))


def damage_the_record(folder: Path) -> None:
    (folder / record.CHECKSUMS).write_text('{"sha256": [')


def remove_the_sizes(folder: Path) -> None:
    (folder / record.SIZES).unlink()


CHANGES = [
    change_a_template,
    change_a_nested_file,
    remove_the_config_of_a_part,
    cut_weights,
    damage_the_record,
    remove_the_sizes,
]


def change_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"1" * 100)


def delete_the_checksums(folder: Path) -> None:
    (folder / record.CHECKSUMS).unlink()


def add_files_of_others(folder: Path) -> None:
    (folder / ".nfs0001").write_bytes(b"")
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_bytes(b"{}")


@pytest.mark.parametrize("change", CHANGES)
def test_an_engine_refuses_a_fetched_model_whose_files_have_changed(
    fetched: Path, change: Callable[[Path], None]
) -> None:
    change(fetched)

    with pytest.raises(ModelSourceError, match=r"not as fetched.*fetch the model again"):
        resolve(str(fetched))


@pytest.mark.parametrize("change", [leave, add_files_of_others, delete_the_checksums])
def test_an_engine_takes_a_model_as_it_was_fetched(fetched: Path, change: Callable[[Path], None]) -> None:
    change(fetched)

    assert resolve(str(fetched)) == fetched


def test_an_engine_refuses_a_fetched_model_with_a_file_that_it_would_read_and_that_was_not_fetched(
    fetched: Path,
) -> None:
    add_weights(fetched)

    with pytest.raises(ModelSourceError, match=r"other.safetensors were added .* delete them"):
        resolve(str(fetched))


@pytest.mark.parametrize("add", [add_weights, add_files_of_others])
def test_a_complete_model_stays_in_place_for_running_engines_when_a_file_was_added(
    fetched: Path, caplog: pytest.LogCaptureFixture, add: Callable[[Path], None]
) -> None:
    add(fetched)
    weights = (fetched / WEIGHTS).stat().st_ino

    place = store.materialize(
        fetched, "hf://org/name", lambda place: pytest.fail("fetched again"), is_hashed=record.every_file
    )

    assert place == fetched

    assert (fetched / WEIGHTS).stat().st_ino == weights
    assert ("other.safetensors are deleted" in caplog.text) == (add is add_weights)


def test_a_fetch_compares_the_content_of_weights_too_and_an_engine_their_size(fetched: Path) -> None:
    change_weights(fetched)

    assert record.differences(fetched, record.every_file) == [WEIGHTS]
    assert record.differences(fetched, record.all_but_weights) == []


def test_a_model_whose_checksums_were_deleted_is_fetched_again(fetched: Path) -> None:
    delete_the_checksums(fetched)

    assert record.differences(fetched, record.every_file) == [record.CHECKSUMS]
