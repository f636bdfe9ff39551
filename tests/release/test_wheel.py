"""The build hook of wheels, on a copy of the kernels' package with a small source in place of the kernels'."""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine_server.modeling.native import build
from engine_server.modeling.native.levels import LEVELS

ROOT = Path(__file__).parents[2]
NATIVE = "engine_server/modeling/native"
needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no g++ for this machine")


@pytest.fixture(scope="module")
def hook() -> Any:
    """The module that hatchling loads."""
    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder as an sdist unpacks, of which the hook compiles one small source."""
    (tmp_path / NATIVE).mkdir(parents=True)
    packages = [f"{folder}/__init__.py" for folder in ("engine_server", "engine_server/modeling", NATIVE)]
    for name in (*packages, f"{NATIVE}/build.py", f"{NATIVE}/levels.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / NATIVE / "small.cpp").write_text("#include <cstdlib>\nint small() { return std::rand(); }\n")
    return tmp_path


def build_data(hook: Any, folder: Path, version: str = "standard") -> dict[str, Any]:
    """Return what the hook makes of hatchling's defaults for a wheel."""
    data: dict[str, Any] = {"pure_python": True}
    hook.KernelHook(str(folder), {}, None, None, str(folder), "wheel").initialize(version, data)
    return data


def libraries(folder: Path) -> set[str]:
    return {file.name for file in (folder / NATIVE).glob("*.so")}


@needs_compiler
def test_wheel_has_the_kernels_of_every_level_and_the_tag_of_their_platform(hook: Any, source: Path) -> None:
    data = build_data(hook, source)

    assert libraries(source) == {f"kernels-{level}.so" for level in LEVELS}
    assert data["pure_python"] is False
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", data["tag"])


def test_wheel_has_no_kernels_and_any_platform_where_there_is_no_compiler(
    hook: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(source))

    assert build_data(hook, source) == {"pure_python": True}
    assert libraries(source) == set()


def test_editable_installation_compiles_nothing(hook: Any, source: Path) -> None:
    assert build_data(hook, source, "editable") == {"pure_python": True}
    assert libraries(source) == set()


def test_tag_names_the_newest_glibc_that_any_library_needs(hook: Any, tmp_path: Path) -> None:
    for name, symbols in (
        ("a.so", b"\0GLIBC_2.2.5\0GLIBC_2.34\0"),
        ("b.so", b"\0GLIBC_2.9\0GLIBCXX_3.4.99\0"),
    ):
        (tmp_path / name).write_bytes(b"\x7fELF" + symbols)

    assert hook.platform_tag(sorted(tmp_path.glob("*.so"))) == "manylinux_2_34_x86_64"
