"""Atomic creation of model folders: filled under another name by one process, then renamed."""

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_server.models import folder
from engine_server.models.errors import ModelSourceError
from engine_server.models.progress import Progress

log = logging.getLogger(__name__)
# The file in a finished folder that holds the model's URI.
ORIGIN = ".fairlead-model"
# The file in a finished folder that holds the size of every other file by its path.
SIZES = ".fairlead-sizes"


def cache() -> Path:
    """Return the cache folder: $FAIRLEAD_CACHE, else fairlead/ in the user's cache."""
    if chosen := os.environ.get("FAIRLEAD_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairlead"


def materialize(
    place: Path,
    uri: str,
    fill: Callable[[Path], None],
    progress: Progress | None = None,
    can_resume: bool = False,
    check: Callable[[Path, str], object] = folder.check,
) -> Path:
    """Return `place` once it holds the model `uri`; `fill` writes it into another folder if necessary.

    can_resume: `fill` continues in the folder of an interrupted process; otherwise it gets an empty one.
    check: raises ModelSourceError for a folder that isn't complete.
    Raises ModelSourceError if `place` holds something else or can't be written.
    """
    place = place.absolute()
    progress = progress or Progress()
    try:
        if _holds(place, uri):
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.parent / f".{place.name}.lock"):
            if not _holds(place, uri):
                _fill(place, uri, fill, progress, can_resume, check)
    except OSError as error:
        raise ModelSourceError(f"{uri}: cannot be written to {place}: {error.strerror or error}") from error
    return place


def _fill(
    place: Path,
    uri: str,
    fill: Callable[[Path], None],
    progress: Progress,
    can_resume: bool,
    check: Callable[[Path, str], object],
) -> None:
    staging = place.parent / f".{place.name}.partial"
    if not can_resume or _origin(staging) != uri:
        shutil.rmtree(
            staging, ignore_errors=True
        )  # of an interrupted process, which no longer holds the lock
    staging.mkdir(exist_ok=True)
    progress.folder = staging
    try:
        (staging / ORIGIN).write_text(uri + "\n")
        fill(staging)
        check(staging, uri)
        _seal(staging)
        shutil.rmtree(place, ignore_errors=True)
        staging.rename(place)
    finally:
        if not can_resume:
            shutil.rmtree(staging, ignore_errors=True)


def _seal(staging: Path) -> None:
    """Record the sizes of all files, and write them to the disk; the server may run as another user."""
    files = [path for path in staging.rglob("*") if path.is_file() and path.name not in (ORIGIN, SIZES)]
    sizes = {str(path.relative_to(staging)): path.stat().st_size for path in files}
    (staging / SIZES).write_text(json.dumps(sizes, indent=0))
    for path in staging.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _holds(place: Path, uri: str) -> bool:
    """Return True if `place` holds this model, False if it is free, empty or damaged. Raises ModelSourceError."""
    holds = _origin(place)
    if holds is not None:
        if holds != uri:
            raise ModelSourceError(f"{uri}: {place} holds another model, {holds}")
        return _is_complete(place)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ModelSourceError(
            f"{uri}: {place} is in use: it holds something that was not fetched by this command"
        )
    return False


def _origin(place: Path) -> str | None:
    """Return the URI of the model that `place` holds, None for a folder that was not filled by `materialize`."""
    origin = place / ORIGIN
    return origin.read_text().strip() if origin.is_file() else None


def _is_complete(place: Path) -> bool:
    """Compare the files with the sizes that were recorded; a folder of an earlier release has no record."""
    record = place / SIZES
    sizes: dict[str, int] = json.loads(record.read_bytes()) if record.is_file() else {}
    for name, size in sizes.items():
        path = place / name
        if not path.is_file() or path.stat().st_size != size:
            log.warning("%s is not as it was fetched; the model is fetched again", path)
            return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on `path`; the kernel releases it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with step("waiting for another process that prepares the same model"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_space(folder: Path, needed: int, uri: str) -> None:
    """Raise ModelSourceError if `needed` bytes don't fit the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelSourceError(
            f"{uri}: it takes {needed >> 20} MiB, and {free >> 20} MiB are free at {folder}"
        )


@contextmanager
def step(what: str) -> Iterator[None]:
    """Log the start of a step and its duration."""
    log.info("%s ...", what)
    start = time.monotonic()
    yield
    log.info("%s: done in %.1f s", what, time.monotonic() - start)
