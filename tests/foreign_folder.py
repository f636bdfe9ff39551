"""A working folder with Python modules beside a model, as somebody else's repository may have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# Imported by the programs that this project starts: of other projects, of the standard library and of our own.
MODULES = ("engine_server", "logging", "msgspec", "pip", "torch", "zmq")


@pytest.fixture
def foreign_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with modules that nobody imports; the test fails if one was imported."""
    folder, imported = tmp_path / "foreign", tmp_path / "imported"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(
            f"open({str(imported)!r}, 'a').write('{name} ')\nraise SystemExit(9)\n"
        )
    monkeypatch.chdir(folder)
    yield folder
    assert not imported.exists(), imported.read_text()
