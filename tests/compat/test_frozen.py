"""The freeze of a release's recordings, and that none changes once the release is published."""

import shutil
import subprocess
from pathlib import Path

import pytest
from compat import record
from compat.record import NEXT, ROOT, FreezeError, changed_since_their_tags, differences, freeze


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a copy of the generation `next`, where a release can be frozen without helm."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").write_text('#!/bin/sh\n: >"$4/fairlead-9.9.9.tgz"\n')
    (programs / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    shutil.copytree(NEXT, tmp_path / "compat" / NEXT.name)
    return tmp_path / "compat"


def test_next_is_frozen_with_the_contract_and_the_chart_under_the_version(folder: Path) -> None:
    assert freeze("9.9.9", folder)

    added = {"contract.zip", "fairlead-9.9.9.tgz"}
    assert {file.name for file in (folder / "9.9.9").iterdir()} == added | {
        file.name for file in NEXT.iterdir()
    }


def test_a_release_that_is_frozen_already_stays_as_it_is(folder: Path) -> None:
    freeze("9.9.9", folder)
    (folder / "9.9.9" / "contract.zip").write_bytes(b"first")

    assert not freeze("9.9.9", folder)

    assert (folder / "9.9.9" / "contract.zip").read_bytes() == b"first"


def test_an_exchange_that_has_changed_since_the_freeze_takes_another_version(folder: Path) -> None:
    freeze("9.9.9", folder)
    (folder / "9.9.9" / "load.json").write_text("{}")
    (folder / "9.9.9" / "paths.json").unlink()

    with pytest.raises(
        FreezeError, match=r"^9\.9\.9 is frozen, and today differs: load, paths; raise the version"
    ):
        freeze("9.9.9", folder)


def test_outdated_recordings_are_not_frozen(folder: Path) -> None:
    (folder / NEXT.name / "gone.json").write_text("{}")

    with pytest.raises(FreezeError, match=r"^next is outdated: gone; run make recordings"):
        freeze("9.9.9", folder)

    assert not (folder / "9.9.9").exists()


def test_a_chart_that_cannot_be_packaged_leaves_nothing_frozen(folder: Path) -> None:
    (folder.parent / "bin" / "helm").write_text("#!/bin/sh\nexit 1\n")

    with pytest.raises(subprocess.CalledProcessError):
        freeze("9.9.9", folder)

    assert not (folder / "9.9.9").exists()


def test_recordings_are_written_in_place_of_all_that_were_there(tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "gone.json").write_text("{}")

    record.write_recordings(tmp_path / "next")

    assert not [*differences(tmp_path / "next")]


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="needs the tags of the repository: this is no checkout"
)
def test_nothing_frozen_has_changed_since_its_release() -> None:
    assert changed_since_their_tags(ROOT) == []


def test_a_change_of_what_a_published_release_has_frozen_is_noticed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    frozen = tmp_path / "tests/compat/1.0.0"
    frozen.mkdir(parents=True)
    for name in ("kept.json", "changed.json", "deleted.json"):
        (frozen / name).write_text("{}")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "v1.0.0")
    assert changed_since_their_tags(tmp_path) == []

    (frozen / "changed.json").write_text("[]")
    (frozen / "deleted.json").unlink()
    (frozen / "added.json").write_text("{}")
    (frozen.parent / "next.json").write_text("{}")
    git("add", ".")

    changed = changed_since_their_tags(tmp_path)
    assert changed == [f"tests/compat/1.0.0/{name}.json" for name in ("added", "changed", "deleted")]
