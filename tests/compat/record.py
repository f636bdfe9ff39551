"""Recording of what today's programs write to each other, and the freeze of it for a release.

`PYTHONPATH=tests .venv/bin/python -m compat.record` writes tests/compat/next/ anew; `--freeze` copies it to the folder
of the version.
"""

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from compat import by_engine, by_operator, by_others, by_router, contract_decoders
from compat.exchange import Exchange, record

from engine_server.contract.base.version import VERSION

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEXT = HERE / "next"
CHART = ROOT / "charts" / "fairlead"
CONTRACT = ROOT / "engine_server" / "contract"
CONTRACT_NAME = "contract.zip"
# What a zip has in place of times.
EPOCH = (1980, 1, 1, 0, 0, 0)
EXCHANGES = {
    exchange.name: exchange
    for module in (by_router, by_engine, by_operator, by_others)
    for exchange in module.EXCHANGES
}


class FreezeError(Exception):
    """A generation that cannot be frozen, with the reason for people."""


@cache
def recording_of(exchange: Exchange) -> str:
    """Return the content of the file with the recording of today's code."""
    return json.dumps(record(exchange), indent=1, ensure_ascii=False) + "\n"


def write_recordings(folder: Path) -> None:
    """Write what today's programs write to each other, one file for each exchange, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, exchange in EXCHANGES.items():
        (folder / f"{name}.json").write_text(recording_of(exchange))


def differences(folder: Path) -> Iterator[str]:
    """Yield the exchanges whose recording in a folder is not what today's programs write, or is one too many."""
    found = {file.stem: file.read_text() for file in folder.glob("*.json")}
    for name in sorted(EXCHANGES.keys() | found.keys()):
        if name not in EXCHANGES or found.get(name) != recording_of(EXCHANGES[name]):
            yield name


def freeze(version: str, folder: Path = HERE) -> bool:
    """Copy `next` to the folder of a version, with the contract and the packaged chart (which takes helm on PATH).

    Return False if it is there already, and is the same. Raises FreezeError if it differs, or if `next` is outdated.
    """
    if outdated := [*differences(folder / NEXT.name)]:
        raise FreezeError(f"{NEXT.name} is outdated: {', '.join(outdated)}; run make recordings")
    frozen = folder / version
    if frozen.exists():
        if changed := [*differences(frozen)]:
            raise FreezeError(
                f"{version} is frozen, and today differs: {', '.join(changed)}; raise the version"
            )
        return False
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(["helm", "package", CHART, "--destination", made], check=True)
        write_contract(Path(made) / CONTRACT_NAME)
        shutil.copytree(folder / NEXT.name, made, dirs_exist_ok=True)
        shutil.copytree(made, frozen)
    return True


def write_contract(file: Path) -> None:
    """Write the package `engine_server.contract`, without the rest of `engine_server`, and a program that decodes."""
    program = Path(contract_decoders.__file__).read_bytes()
    sources = {"__main__.py": program, "engine_server/__init__.py": b""}
    for source in sorted(CONTRACT.rglob("*.py")):
        sources[source.relative_to(ROOT).as_posix()] = source.read_bytes()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)


def changed_since_their_tags(root: Path) -> list[str]:
    """Return the files of frozen generations that differ from those of the tag of their release, vVERSION."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    changed: list[str] = []
    for tag in git("tag", "--list", "v[0-9]*"):
        changed += git(
            "diff", "--no-renames", "--name-only", tag, "--", f"tests/compat/{tag.removeprefix('v')}"
        )
    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="compat.record", description=__doc__)
    parser.add_argument("--freeze", action="store_true", help=f"freeze next as {VERSION}, if it is not")
    flags = parser.parse_args()
    # Of the programs, some of which report failures.
    logging.disable()
    if flags.freeze:
        try:
            is_new = freeze(VERSION)
        except FreezeError as error:
            sys.exit(str(error))
        print(f"tests/compat/{VERSION}: " + ("frozen; commit it" if is_new else "frozen already"))
    else:
        write_recordings(NEXT)
