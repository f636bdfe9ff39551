"""The record that a fetch leaves in a model's folder: its URI, and the commit, sizes and checksums of its files.

Whoever finds the folder compares its files with the record. A folder whose checksums were deleted is used without.
"""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from engine_server.contract.cluster.sources.hub import COMMIT
from engine_server.model_sources.errors import ModelSourceError
from engine_server.model_sources.folder import is_used

# The file that holds the model's URI.
ORIGIN = ".fairlead-model"
# The file that holds the size of every other file by its path.
SIZES = ".fairlead-sizes"
# The file that holds the Checksums.
CHECKSUMS = ".fairlead-checksums"
HASHING_THREADS = 4

# Of a fetched model that is as it was published.
NOT_CONVERTED = 0

T = TypeVar("T")


class Checksums(msgspec.Struct, frozen=True):
    """What is known of the content of a model's files."""

    # Of the hub's repository, if the model comes from one.
    commit: str | None = None
    # Of each file by its path in the folder, in hexadecimal digits.
    sha256: dict[str, str] = {}
    # Of the files that a conversion wrote beside the weights, the version of that; None: not recorded.
    conversion: int | None = None


def write(folder: Path, known: Checksums) -> None:
    """Record the files of `folder`; checksums that are not known are computed."""
    (folder / CHECKSUMS).unlink(missing_ok=True)
    unknown = {name: path for name, path in _files(folder).items() if name not in known.sha256}
    checksums = msgspec.structs.replace(known, sha256=known.sha256 | _hashes(unknown))
    (folder / CHECKSUMS).write_bytes(msgspec.json.encode(checksums))
    sizes = {name: path.stat().st_size for name, path in _files(folder).items()}
    (folder / SIZES).write_bytes(msgspec.json.encode(sizes))


def every_file(name: str) -> bool:
    return True


def all_but_weights(name: str) -> bool:
    return not name.endswith(".safetensors")


def differences(folder: Path, is_hashed: Callable[[str], bool]) -> list[str]:
    """Return the fetched files that are missing or not as they were fetched. Files of others are not compared.

    is_hashed: returns True for a file whose content is compared; of others it is the size.
    """
    try:
        sizes = _read(folder / SIZES, dict[str, int]) or {}
        sha256 = recorded(folder).sha256
    except msgspec.DecodeError:
        return [f"{SIZES} or {CHECKSUMS}"]
    found = _files(folder)
    changed = {
        name
        for name in sizes.keys() | sha256.keys()
        if name not in found or found[name].stat().st_size != sizes.get(name)
    }
    hashes = _hashes({name: found[name] for name in sha256.keys() - changed if is_hashed(name)})
    return sorted(changed | {name for name, digest in hashes.items() if digest != sha256[name]})


def additions(folder: Path) -> list[str]:
    """Return the files that were added to a fetched model and that an engine would read as a part of it."""
    known = recorded(folder).sha256
    if not known:
        return []
    found = [path.name for path in folder.iterdir() if path.is_file() and is_used(path.name)]
    return sorted(set(found) - known.keys())


def verify(folder: Path, uri: str) -> None:
    """Raise ModelSourceError if `folder` is a fetched model, and an engine would read something else from it.

    Of weights the sizes are compared: to read them twice would take about as long as to load them.
    """
    if not (folder / CHECKSUMS).is_file():
        return
    if changed := differences(folder, all_but_weights):
        raise ModelSourceError(
            f"{uri}: not as fetched into {folder}: {', '.join(changed[:3])}; fetch the model again, or, if you "
            f"have changed it yourself, delete {CHECKSUMS}"
        )
    if added := additions(folder):
        raise ModelSourceError(
            f"{uri}: {', '.join(added[:3])} were added to the model fetched into {folder}; delete them, or, if "
            f"they belong to it, {CHECKSUMS}"
        )


def commit_in(folder: Path) -> str | None:
    """Return the commit of the hub's repository that a folder was fetched from; None if there is none, or no record."""
    return recorded(folder).commit


def recorded(folder: Path) -> Checksums:
    """Return what a fetch recorded of a folder's files. Raises msgspec.DecodeError."""
    return _read(folder / CHECKSUMS, Checksums) or Checksums()


def is_of_commit(folder: Path, uri: str) -> bool:
    """Return False if `uri` names a commit by all its digits, and another one was fetched."""
    named = re.fullmatch(f".*@({COMMIT})", uri)
    return named is None or commit_in(folder) in (None, named[1])


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _hashes(files: dict[str, Path]) -> dict[str, str]:
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        return dict(zip(files, pool.map(sha256_of, files.values()), strict=True))


def _files(folder: Path) -> dict[str, Path]:
    """Return the files that are recorded, by their paths in the folder."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in found.items() if name not in (ORIGIN, SIZES)}


def _read(path: Path, content: type[T]) -> T | None:
    """Return the content of a record, None without one. Raises msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=content) if path.is_file() else None
