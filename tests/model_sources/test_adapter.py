"""URIs of adapters: each kind resolves to a folder as PEFT saves it, or is refused by what it lacks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server.model_sources import ModelSourceError
from engine_server.model_sources.adapter import resolve_adapter

Wheel = Callable[..., Path]
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"w"}


def inside(folder: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in FILES.items()}


def test_folder_is_used_where_it_is(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert resolve_adapter(str(tmp_path)) == tmp_path


def test_adapter_of_a_wheel_is_unpacked_once(wheel: Wheel, cache: Path) -> None:
    made = wheel("legal", **inside("legal/adapter"), **{"legal/model/config.json": b"{}"})
    folder = resolve_adapter("pypi://legal")
    assert folder.is_relative_to(cache)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert not (folder / "config.json").exists() and not (folder / "__init__.py").exists()
    made.unlink()
    assert resolve_adapter("pypi://Legal") == folder


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"m/config.json": b"{}"}, "the wheel has no folder with adapter_config.json"),
        (inside("a") | inside("b"), "the wheel has more than one adapter: a, b"),
        ({"../../evil": b"", **inside("a")}, "leaves its folder: '../../evil'"),
    ],
)
def test_wheel_without_exactly_one_adapter_is_refused(
    wheel: Wheel, cache: Path, files: dict[str, bytes], words: str
) -> None:
    wheel("legal", **files)
    with pytest.raises(ModelSourceError) as refused:
        resolve_adapter("pypi://legal")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://org/name/file.gguf", "this is a GGUF file"),
        ("pvc://claim/a", "exists only in a cluster"),
        ("gs://bucket/a", "there is no model source gs://"),
    ],
)
def test_other_sources_are_refused(uri: str, words: str) -> None:
    with pytest.raises(ModelSourceError) as refused:
        resolve_adapter(uri)
    assert words in str(refused.value)
