"""Atomic creation of model folders: filled under another name by one process, then renamed."""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_server.models import folder
from engine_server.models.errors import ModelSourceError

log = logging.getLogger(__name__)
# The file in a finished folder that holds the model's URI.
ORIGIN = ".fairlead-model"


def cache() -> Path:
    """Return the cache folder: $FAIRLEAD_CACHE, else fairlead/ in the user's cache."""
    if chosen := os.environ.get("FAIRLEAD_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairlead"


def materialize(place: Path, uri: str, fill: Callable[[Path], None]) -> Path:
    """Return `place` once it holds the model `uri`; `fill` writes it into an empty folder if necessary.

    Raises ModelSourceError if the folder holds something else or can't be written.
    """
    place = place.absolute()
    if _holds(place, uri):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.parent / f".{place.name}.lock"):
            if _holds(place, uri):
                return place
            _fill(place, uri, fill)
    except OSError as error:
        raise ModelSourceError(f"{uri}: cannot be written to {place}: {error.strerror or error}") from error
    return place


def _fill(place: Path, uri: str, fill: Callable[[Path], None]) -> None:
    staging = place.parent / f".{place.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)  # of an interrupted process, which no longer holds the lock
    staging.mkdir()
    try:
        fill(staging)
        folder.check(staging, uri)
        (staging / ORIGIN).write_text(uri + "\n")
        for path in staging.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # the server may run as another user
        staging.rename(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _holds(place: Path, uri: str) -> bool:
    """Return True if `place` holds this model, False if it is free: absent or empty. Raises ModelSourceError."""
    origin = place / ORIGIN
    if origin.is_file():
        holds = origin.read_text().strip()
        if holds != uri:
            raise ModelSourceError(f"{uri}: {place} holds another model, {holds}")
        return True
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ModelSourceError(
            f"{uri}: {place} is in use: it holds something that was not fetched by this command"
        )
    return False


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


@contextmanager
def step(what: str) -> Iterator[None]:
    """Log the start of a step and its duration."""
    log.info("%s ...", what)
    start = time.monotonic()
    yield
    log.info("%s: done in %.1f s", what, time.monotonic() - start)
