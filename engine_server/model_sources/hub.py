"""`hf://org/name[@revision]`: download from a hub, configured by HF_ENDPOINT, HF_HOME and HF_TOKEN."""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.contract.base.quoting import quote
from engine_server.contract.cluster.sources.hub import COMMIT, HubRepository
from engine_server.model_sources import folder
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError
from engine_server.model_sources.folder import UNUSED, USED, is_inside, is_used
from engine_server.model_sources.gguf.shards import shards, some
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import HASHING_THREADS, Checksums, sha256_of
from engine_server.model_sources.store import check_space, step
from engine_server.model_sources.wanted import Conversion, Wanted

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo


def fetch_model(source: HubRepository, wanted: Wanted) -> Path:
    """Return the folder of a repository, or of its GGUF file, converted. Raises ModelSourceError."""
    if source.file is not None:
        if not wanted.takes_gguf:
            raise UnusableModelError(
                f"{source}: load_format is {wanted.load_format}, which takes no GGUF file"
            )
        conversion = Conversion(lambda: download_gguf(source, wanted.progress), wanted)
        if wanted.into is not None:
            return conversion.materialize(wanted.into, str(source))
        return wanted.convert(conversion.file())
    if wanted.into is None:
        return folder.check(download(source, wanted.progress), str(source))
    fill_place = partial(fill, source, progress=wanted.progress)
    return wanted.materialize(wanted.into, str(source), fill_place, can_resume=True)


def fetch_adapter(source: HubRepository, check: Callable[[Path, str], Path]) -> Path:
    """Return the folder of a repository that is an adapter. Raises ModelSourceError."""
    if source.file is not None:
        raise UnusableModelError(f"{source}: an adapter is a folder of files, and this is a GGUF file")
    return check(download(source, Progress()), str(source))


def download(source: HubRepository, progress: Progress) -> Path:
    """Download a repository into the hub's cache; return its folder. Raises ModelSourceError."""
    from huggingface_hub import errors, snapshot_download

    name, revision = source.repository, source.revision
    with _described(source, progress):
        # A hub that can't be reached is no error if the cache is complete.
        with suppress(errors.DryRunError):
            expected = snapshot_download(
                name, revision=revision, allow_patterns=USED, ignore_patterns=UNUSED, dry_run=True
            )
            _prepare_cache(source, expected, progress)
        return Path(snapshot_download(name, revision=revision, allow_patterns=USED, ignore_patterns=UNUSED))


def download_gguf(source: HubRepository, progress: Progress) -> Path:
    """Download the GGUF file that `source` names, or all files of a split one, into the hub's cache; return the first.

    Raises ModelSourceError, before anything is downloaded if the repository lacks one of the files.
    """
    from huggingface_hub import errors, hf_hub_download

    assert source.file is not None
    names = shards(source.file)
    with _described(source, progress):
        expected, missing = [], []
        for name in names:
            try:
                expected.append(
                    hf_hub_download(source.repository, name, revision=source.revision, dry_run=True)
                )
            except errors.RemoteEntryNotFoundError:
                if len(names) == 1:
                    raise
                missing.append(name)
        if missing:
            raise UnusableModelError(
                f"{source} is one of {len(names)} files; missing in the repository: {some(missing)}"
            )
        _prepare_cache(source, expected, progress)
        paths = [Path(hf_hub_download(source.repository, name, revision=source.revision)) for name in names]
        if len({path.parent for path in paths}) > 1:
            raise ModelSourceError(
                f"{source}: the branch has moved during the download; fetch the model again"
            )
    return paths[0]


def fill(source: HubRepository, place: Path, progress: Progress) -> Checksums:
    """Download a repository into the folder `place`, and verify it; keep the files of an interrupted download.

    Return the commit and the files' checksums. The library cannot continue within a file. Raises ModelSourceError.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    for abandoned in place.rglob("*.incomplete"):
        abandoned.unlink()
    with _described(source, progress):
        revision = source.revision or constants.DEFAULT_REVISION
        info = HfApi().model_info(source.repository, revision=revision, files_metadata=True)
        if re.fullmatch(COMMIT, revision) and info.sha != revision:
            raise ModelSourceError(f"{source}: {constants.ENDPOINT} has commit {info.sha} under this name")
        files = [file for file in info.siblings or () if is_used(file.rfilename)]
        if outside := [file.rfilename for file in files if not is_inside(file.rfilename)]:
            raise UnusableModelError(f"{source}: {quote(outside[0])} is not in the repository's folder")
        progress.total = sum(file.size or 0 for file in files)
        missing = sum(file.size or 0 for file in files if not _has_size(place, file))
        check_space(place, missing, str(source))
        # The commit, not the revision: a branch may move meanwhile.
        snapshot_download(
            source.repository,
            revision=info.sha,
            local_dir=place,
            allow_patterns=USED,
            ignore_patterns=UNUSED,
        )
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            checked = list(pool.map(lambda file: _checked(place, file), files))
    sha256 = {file.rfilename: digest for file, digest in zip(files, checked, strict=True) if digest}
    names = {file.rfilename for file in files}
    for path in place.rglob("*"):  # of an interrupted download of another commit
        relative = str(path.relative_to(place))
        if path.is_file() and is_used(relative) and not relative.startswith(".") and relative not in names:
            path.unlink()
    if damaged := sorted(names - sha256.keys()):
        raise ModelSourceError(f"{source}: {', '.join(damaged)} differ from the repository's checksums")
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the hub library's download records
    return Checksums(info.sha, sha256)


def _prepare_cache(source: HubRepository, files: list["DryRunFileInfo"], progress: Progress) -> None:
    """Follow the download into the hub's cache; raise ModelSourceError if what it lacks doesn't fit its disk."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if needed := sum(file.file_size or 0 for file in files if file.will_download):
        cache = Path(constants.HF_HUB_CACHE)
        cache.mkdir(parents=True, exist_ok=True)
        check_space(cache, needed, str(source))
        progress.total = needed
        progress.follow_growth(
            cache / repo_folder_name(repo_id=source.repository, repo_type="model") / "blobs"
        )


def _has_size(place: Path, file: Any) -> bool:
    """Return True if a file was downloaded, with the size that it has in the repository."""
    path: Path = place / file.rfilename
    return path.is_file() and file.size in (None, path.stat().st_size)


def _checked(place: Path, file: Any) -> str | None:
    """Return the SHA-256 of a file; remove one that differs from the repository's size or checksum."""
    path: Path = place / file.rfilename
    if _has_size(place, file):
        digest = sha256_of(path)
        if not file.lfs or file.lfs.sha256 == digest:
            return digest
    path.unlink(missing_ok=True)
    return None


@contextmanager
def _described(source: HubRepository, progress: Progress) -> Iterator[None]:
    """Log the download and its progress, and turn the library's errors into ModelSourceError."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # warnings about retries carry tracebacks
    disable_progress_bars()
    name = str(source)
    where = constants.ENDPOINT
    try:
        with step(f"fetching {name} from {where}", progress):
            yield
    except ModelSourceError:
        raise
    except errors.GatedRepoError as error:
        raise ModelSourceError(
            f"{name}: access to this repository at {where} must be granted to you; then set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"{name}: {where} has no such repository, or it is private and HF_TOKEN does not open it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelSourceError(
            f"{name}: the repository at {where} has no revision {source.revision}"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelSourceError(f"{name}: the repository at {where} has no such file") from error
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__ or error
        if isinstance(cause, errors.OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set"
        else:
            reason = f"{where} cannot be reached ({type(cause).__name__}: {cause})"
        raise ModelSourceError(
            f"{name}: {reason}, and the model is not complete in the cache {constants.HF_HUB_CACHE}"
        ) from error
    except Exception as error:  # the library passes on any error of its HTTP library
        raise ModelSourceError(f"{name}: {where} failed: {error}") from error
