"""GGUF files in several parts."""

import shutil
from pathlib import Path

import pytest
from model_sources.conftest import save_gguf, save_split
from safetensors.torch import load_file

from engine_server.model_sources import ModelSourceError, resolve

pytestmark = pytest.mark.transformers


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    (tmp_path / "parts").mkdir()
    return save_split(tmp_path / "parts/m.gguf", 3)


@pytest.mark.parametrize("named", ["parts", "parts/m-00001-of-00003.gguf", "parts/m-00003-of-00003.gguf"])
def test_all_parts_are_read_from_any_of_them_and_from_their_folder(
    cache: Path, tmp_path: Path, parts: list[Path], named: str
) -> None:
    assert len(parts) == 3
    whole = resolve(str(save_gguf(tmp_path / "whole.gguf", {})))
    found = resolve(str(tmp_path / named))
    assert found == resolve(str(tmp_path / "parts"))
    expected, weights = (load_file(folder / "model.safetensors") for folder in (whole, found))
    assert expected.keys() == weights.keys()
    assert all((weights[name] == expected[name]).all() for name in expected)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (found / name).read_bytes() == (whole / name).read_bytes()


def test_parts_of_two_models_in_one_folder_are_refused(cache: Path, parts: list[Path]) -> None:
    for part in parts:
        shutil.copy(part, part.with_name(part.name.replace("m-", "n-")))
    with pytest.raises(
        ModelSourceError, match=r"one \.gguf file is expected; there is m-00001-of-00003\.gguf, m-"
    ):
        resolve(str(parts[0].parent))


@pytest.mark.parametrize("whole", [True, False])
def test_missing_part_is_named_before_weights_are_read(cache: Path, parts: list[Path], whole: bool) -> None:
    parts[1].unlink()
    with pytest.raises(ModelSourceError, match=r"one of 3 files; missing beside it: m-00002-of-00003\.gguf"):
        resolve(str(parts[0].parent if whole else parts[0]))
    assert not cache.exists()


def test_part_of_another_model_is_refused(cache: Path, parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ModelSourceError, match=r"m-00003-of-00003\.gguf: split\.no is 1; it takes 2"):
        resolve(str(parts[0]))


def test_parts_under_the_names_of_fewer_are_refused(cache: Path, parts: list[Path]) -> None:
    for part in parts[:2]:
        part.rename(part.with_name(part.name.replace("of-00003", "of-00002")))
    with pytest.raises(ModelSourceError, match=r"split\.count is 3; it takes 2, the number of files"):
        resolve(str(parts[0].with_name("m-00001-of-00002.gguf")))
