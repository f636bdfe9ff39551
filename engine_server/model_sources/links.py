"""Links in the folder of a model, as the cache of a hub's own tools has them: from its snapshots to its blobs.

In a pod they may not lead out of the volume, since whoever fills it does not choose what else the engine reads.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from engine_server.contract.cluster.model_folder import volume_of
from engine_server.model_sources.errors import UnusableModelError
from engine_server.model_sources.folder import is_used


def check_links(files: Iterable[Path], uri: str) -> None:
    """Raise ModelSourceError for a file that is a link to nothing, or that lies outside of its volume by a link."""
    for file in files:
        if file.is_symlink() and not file.exists():
            problem = f"{file} is a link to {file.readlink()}, which is not there"
            raise UnusableModelError(f"{uri}: {problem}; copy what it leads to, too")
        volume = volume_of(file)
        if volume is not None and not file.resolve().is_relative_to(Path(volume).resolve()):
            problem = f"{file} is a link to {file.resolve()}, which is not in the volume of the model"
            raise UnusableModelError(f"{uri}: {problem}; put the file there")


def files_at(path: Path) -> Iterator[Path]:
    """Yield a file or folder, and the files in it, and in its folders, that a model may consist of."""
    yield path
    for file in (*path.glob("*"), *path.glob("*/*")):
        if file.suffix == ".gguf" or is_used(str(file.relative_to(path))):
            yield file
