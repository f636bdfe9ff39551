"""Atomic creation of model folders: filled under another name by one process, then renamed."""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from engine_server.contract.cluster.downloads import downloaded
from engine_server.model_sources import folder, record
from engine_server.model_sources.errors import ModelSourceError
from engine_server.model_sources.folder import is_weights
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import ORIGIN, Checksums

log = logging.getLogger(__name__)
# Between two lines of the progress.
REPORT_SECONDS = 5.0
# Writes a model into an empty folder, and returns what its source tells of the files. Raises ModelSourceError.
Fill = Callable[[Path], Checksums | None]


class Renewal(NamedTuple):
    """How the files beside a model's weights are written anew, where this version would write others."""

    is_current: Callable[[Path], bool]
    # Writes them into the second folder, an empty one, for the weights in the first. Raises ModelSourceError.
    write: Callable[[Path, Path], Checksums]


def cache() -> Path:
    """Return the cache folder: $FAIRLEAD_CACHE, else fairlead/ in the user's cache."""
    if chosen := os.environ.get("FAIRLEAD_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairlead"


def materialize(
    place: Path,
    uri: str,
    fill: Fill,
    progress: Progress | None = None,
    can_resume: bool = False,
    check: Callable[[Path, str], object] = folder.check,
    is_hashed: Callable[[str], bool] = record.all_but_weights,
    renewal: Renewal | None = None,
) -> Path:
    """Return `place` once it holds the model `uri`; `fill` writes it into another folder if necessary.

    can_resume: `fill` continues in the folder of an interrupted process; otherwise it gets an empty one.
    check: raises ModelSourceError for a folder that isn't complete. is_hashed: returns True for a file of which the
    content is compared with the record, if `place` is filled already, and not only the size. renewal: of files that an
    earlier version of this program wrote.
    Raises ModelSourceError if `place` holds something else or can't be written.
    """
    place = place.absolute()
    progress = progress or Progress()
    try:
        if _holds(place, uri, is_hashed) and (renewal is None or renewal.is_current(place)):
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.parent / f".{place.name}.lock"):
            if not _holds(place, uri, is_hashed):
                _fill(place, uri, fill, progress, can_resume, check)
            elif renewal is not None and not renewal.is_current(place):
                _renew(place, renewal)
    except OSError as error:
        raise ModelSourceError(f"{uri}: cannot be written to {place}: {error.strerror or error}") from error
    return place


def _fill(
    place: Path,
    uri: str,
    fill: Fill,
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
    progress.follow(staging)
    try:
        (staging / ORIGIN).write_text(uri + "\n")
        known = fill(staging) or Checksums()
        check(staging, uri)
        record.write(staging, known)
        _seal(staging)
        shutil.rmtree(place, ignore_errors=True)
        staging.rename(place)
    finally:
        if not can_resume:
            shutil.rmtree(staging, ignore_errors=True)


def _renew(place: Path, renewal: Renewal) -> None:
    """Replace the files beside the weights, each at once; an interrupted process leaves a folder to fetch again."""
    staging = place.parent / f".{place.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        with step(f"writing the files beside the weights in {place} anew"):
            known = renewal.write(place, staging)
        _seal(staging)
        before = record.recorded(place)
        weights = {name: digest for name, digest in before.sha256.items() if is_weights(name)}
        written = {path.relative_to(staging) for path in staging.rglob("*") if path.is_file()}
        for name in before.sha256.keys() - weights.keys() - {str(path) for path in written}:
            (place / name).unlink(missing_ok=True)
        for path in written:
            (place / path).parent.mkdir(exist_ok=True)
            (staging / path).replace(place / path)
        record.write(place, Checksums(before.commit, weights | known.sha256, known.conversion))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _seal(staging: Path) -> None:
    """Write all files to the disk; the server may run as another user."""
    for path in staging.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _holds(place: Path, uri: str, is_hashed: Callable[[str], bool]) -> bool:
    """Return True if `place` holds this model, False if it is free, empty or damaged. Raises ModelSourceError."""
    holds = _origin(place)
    if holds is not None:
        if holds != uri:
            raise ModelSourceError(f"{uri}: {place} holds another model, {holds}")
        return _is_complete(place, uri, is_hashed)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ModelSourceError(
            f"{uri}: {place} is in use: it holds something that was not fetched by this command"
        )
    return False


def _origin(place: Path) -> str | None:
    """Return the URI of the model that `place` holds, None for a folder that was not filled by `materialize`."""
    origin = place / ORIGIN
    return origin.read_text().strip() if origin.is_file() else None


def _is_complete(place: Path, uri: str, is_hashed: Callable[[str], bool]) -> bool:
    """Compare the files with the record of the fetch.

    Added files are left alone: to fetch the model again would remove it under the engines that run with it.
    """
    changed = record.differences(place, is_hashed)
    if changed:
        log.warning("%s: not as fetched: %s; the model is fetched again", place, ", ".join(changed[:3]))
        return False
    if not record.is_of_commit(place, uri):
        log.warning("%s: holds another commit than %s; the model is fetched again", place, uri)
        return False
    if added := record.additions(place):
        log.warning(
            "%s: engines will not start from it until %s are deleted, which were not fetched",
            place,
            ", ".join(added[:3]),
        )
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
def step(what: str, progress: Progress | None = None) -> Iterator[None]:
    """Log the start of a step, every few seconds its progress, and its duration."""
    log.info("%s ...", what)
    start = time.monotonic()
    with reporting(what, progress, start) if progress else nullcontext():
        yield
    log.info("%s: done in %.1f s", what, time.monotonic() - start)


@contextmanager
def reporting(what: str, progress: Progress, start: float) -> Iterator[None]:
    """Log the progress every REPORT_SECONDS inside the block, with the seconds since `start`."""
    ended = Event()

    def report() -> None:
        while not ended.wait(REPORT_SECONDS):
            if done := progress.done:
                seconds = time.monotonic() - start
                log.info("%s: %s after %.0f s", what, downloaded(done, progress.total), seconds)

    reporter = Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
