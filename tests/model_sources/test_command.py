"""The exit status of `fairlead fetch`, by which a download is repeated or not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server.contract.cluster.fetch_container import UNUSABLE
from engine_server.model_sources import command


def empty(folder: Path) -> str:
    return str(folder)


def damaged_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return str(folder)


def without_weights(folder: Path) -> str:
    (folder / "config.json").write_text("{}")
    return str(folder)


def wrong_uri(folder: Path) -> str:
    return "hf://one/two/three/../four"


@pytest.mark.parametrize("model", [empty, damaged_config, without_weights, wrong_uri])
def test_what_no_repetition_makes_a_model_has_a_status_of_its_own(
    tmp_path: Path, model: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([model(tmp_path)]) == UNUSABLE
    assert capsys.readouterr().err.startswith("fairlead fetch: ")


def test_a_folder_in_use_may_be_free_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    without_weights(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "other").touch()
    assert command.main([str(tmp_path / "model"), "--to", str(tmp_path / "place")]) == 1
