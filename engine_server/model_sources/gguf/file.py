"""A GGUF file, or the files of a split one: its keys by type, and its tensors."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gguf import GGUFReader

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor

T = TypeVar("T", str, int, float, bool)
KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


class GgufFile:
    """A file, or all of a split one, of which the first has the keys."""

    def __init__(self, paths: list[Path]) -> None:
        """Read keys and names of tensors, and no weights. Raises ModelSourceError, which names the file."""
        self.paths = paths
        self.name = paths[0].name
        readers = [_open(path) for path in paths]
        self._fields = readers[0].fields
        self.tensors: list[ReaderTensor] = [tensor for reader in readers for tensor in reader.tensors]
        self._check_shards(readers)

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return a value, None without the key. Raises ModelSourceError for a value of another type."""
        value = self._content(key)
        if value is None or (type(value) is int and kind is float):
            return None if value is None else kind(value)
        if type(value) is not kind:
            raise self.error(key, value, KINDS[kind])
        return value

    def of_model(self, key: str, kind: type[T]) -> T | None:
        """Return the value of a key that begins with the architecture, as `get` does."""
        return self.get(f"{self.architecture}.{key}", kind)

    def items(self, key: str, kind: type[T]) -> list[T] | None:
        """Return the values of an array, None without the key. Raises ModelSourceError for another type."""
        values = self._content(key)
        if values is None:
            return None
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self.error(key, values, f"an array, each item {KINDS[kind]}")
        return values

    @cached_property
    def architecture(self) -> str:
        found = self.get("general.architecture", str)
        if found is None:
            raise UnusableModelError(f"{self.name} has no key general.architecture")
        return found

    def names(self, prefix: str) -> list[str]:
        """Return the ends of the keys that begin with `prefix`."""
        return [key.removeprefix(prefix) for key in self._fields if key.startswith(prefix)]

    def tensor(self, name: str) -> ReaderTensor | None:
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def error(self, key: str, value: object, allowed: str) -> UnusableModelError:
        """Return the error for a value that cannot be taken."""
        return UnusableModelError(f"{self.name}: {key} is {quote(value)}; it takes {allowed}")

    def _content(self, key: str) -> object:
        field = self._fields.get(key)
        try:
            return None if field is None else field.contents()
        except UnicodeDecodeError as error:
            raise ModelSourceError(f"{self.name}: {key} is not UTF-8: {error.reason}") from error

    def _check_shards(self, readers: list[GGUFReader]) -> None:
        """Compare the files with the keys of the first one. Raises ModelSourceError."""
        count = self.get("split.count", int) or 1
        if count != len(self.paths):
            raise self.error(
                "split.count", count, f"{len(self.paths)}, the number of files that its name states"
            )
        for number, reader in enumerate(readers[1:], 1):
            field = reader.fields.get("split.no")
            if field is None or field.contents() != number:
                raise ModelSourceError(
                    f"{self.paths[number].name}: split.no is {quote(field and field.contents())}; it takes {number}"
                )
        total = self.get("split.tensors.count", int)
        if total not in (None, len(self.tensors)):
            raise self.error("split.tensors.count", total, f"{len(self.tensors)}, the tensors of all files")


def _open(path: Path) -> GGUFReader:
    """Return a reader of a file whose header and tensors are whole. Raises ModelSourceError."""
    try:
        reader = GGUFReader(path)
        for tensor in reader.tensors:
            if int(tensor.data_offset) + int(tensor.n_bytes) > path.stat().st_size:
                raise ValueError(f"the data of {tensor.name} end beyond the file")
    except Exception as error:  # a damaged file can raise anything
        raise ModelSourceError(f"{path.name} is truncated or damaged: {error}") from error
    return reader
