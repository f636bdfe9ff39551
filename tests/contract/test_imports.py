"""The parts that run without an engine import nothing heavy."""

import subprocess
import sys

import pytest

IMPORTED = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


def imported_by(module: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after importing `module`."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED, module], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def parts_of(modules: set[str]) -> set[str]:
    """Return the parts of Fairlead among `modules`: subpackages of engine_server, and the operator."""
    parts = {name.split(".")[1] for name in modules if name.startswith("engine_server.")}
    return parts | ({"llm_operator"} if "llm_operator" in modules else set())


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        ("engine_server.router.command", {"contract", "router"}),
        ("llm_operator.command", {"contract", "llm_operator"}),
        ("llm_operator.local", {"contract", "llm_operator"}),
    ],
)
def test_router_and_operator_import_the_contract_and_no_engine(module, parts):
    modules = imported_by(module)

    assert parts_of(modules) == parts
    assert not {"torch", "transformers", "tokenizers", "fastapi", "numpy"} & modules


@pytest.mark.parametrize(
    "module", ["api", "drain", "endpoints_file", "errors", "headers", "labels", "model_uri", "served_names"]
)
def test_the_contract_imports_only_msgspec_and_the_standard_library(module):
    modules = imported_by(f"engine_server.contract.{module}")

    assert parts_of(modules) == {"contract"}
    packages = {name.partition(".")[0] for name in modules - imported_by("sys")}
    # msgspec imports typing_extensions where it is installed.
    assert packages - sys.stdlib_module_names <= {"engine_server", "msgspec", "typing_extensions"}
