"""The parts that run without an engine import nothing heavy."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

IMPORTED = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


@cache
def imported_by(module: str) -> frozenset[str]:
    """Return the modules that a fresh interpreter has loaded after importing `module`."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED, module], capture_output=True, text=True, check=True
    )
    return frozenset(result.stdout.split())


def parts_of(modules: frozenset[str]) -> set[str]:
    """Return the parts of Fairlead among `modules`: subpackages of engine_server, and the packages of operator/."""
    parts = {name.split(".")[1] for name in modules if name.startswith("engine_server.")}
    return parts | ({"llm_operator", "llm_local"} & modules)


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        ("engine_server.router.command", {"contract", "router", "shared"}),
        ("llm_operator.command", {"contract", "llm_operator"}),
        pytest.param("llm_local.command", {"contract", "llm_operator", "llm_local"}, marks=pytest.mark.more),
    ],
)
def test_router_and_operator_import_no_engine(module, parts):
    modules = imported_by(module)

    assert parts_of(modules) == parts
    assert not {"torch", "transformers", "tokenizers", "fastapi", "numpy"} & modules
    assert "llm_operator" in parts or not {"kubernetes", "kopf"} & modules


def closure(names: set[str]) -> set[str]:
    """Return the distributions `names` and those that they depend on, in any environment."""
    found: set[str] = set()
    pending = {normalized(name) for name in names}
    while pending:
        name = pending.pop()
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # of another platform
            continue
        pending |= {normalized(one) for one in needed if "extra ==" not in one} - found
    return found


def normalized(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


@pytest.mark.parametrize("module", ["engine_server.router.command", "llm_operator.command"])
def test_the_image_without_an_engine_has_all_that_router_and_operator_import(module):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    installed = closure(set(project["dependency-groups"]["control-plane"]))

    packages = {name.partition(".")[0] for name in imported_by(module) - imported_by("sys")}

    distributions = packages_distributions()
    # A namespace without a file of its own remains of an optional import that failed.
    present = [one for one in packages if (spec := PathFinder.find_spec(one)) and spec.origin]
    needed = {normalized(name) for one in present for name in distributions.get(one, [])}
    # aiohttp imports chardet where it is installed.
    assert not needed - installed - {normalized(project["project"]["name"]), "chardet"}
    everything = {normalized(name) for name in project["project"]["dependencies"]}
    assert {normalized(name) for name in project["dependency-groups"]["control-plane"]} <= everything


@pytest.mark.parametrize(
    "module",
    [
        "cluster.api",
        "cluster.drain",
        "cluster.endpoints_file",
        "cluster.labels",
        "cluster.model_uri",
        "cluster.served_names",
        "wire.errors",
        "wire.headers",
    ],
)
def test_the_contract_imports_only_msgspec_and_the_standard_library(module):
    modules = imported_by(f"engine_server.contract.{module}")

    assert parts_of(modules) == {"contract"}
    packages = {name.partition(".")[0] for name in modules - imported_by("sys")}
    # msgspec imports typing_extensions where it is installed.
    assert packages - sys.stdlib_module_names <= {"engine_server", "msgspec", "typing_extensions"}


def test_a_command_that_lacks_its_packages_names_the_reason(tmp_path):
    (tmp_path / "fastapi.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'fastapi'\", name='fastapi')"
    )
    done = subprocess.run(
        [sys.executable, "-m", "engine_server.cli", "engine", "model"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    expected = "fairlead engine: No module named 'fastapi'; is this the image without an engine?"
    assert done.stderr.strip() == expected
