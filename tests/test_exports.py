"""The public names of the package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import engine_server


def type_checking_names() -> set[tuple[str, str]]:
    """The module and name of each import that only type checkers see."""
    tree = ast.parse(Path(engine_server.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name
    }


@pytest.mark.parametrize("name", engine_server.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(engine_server, name) is not None


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    at_run_time = {(f"engine_server.{module}", name) for name, module in engine_server._MODULES.items()}
    assert type_checking_names() == at_run_time


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="EngineConfigs"):
        _ = engine_server.EngineConfigs


def test_importing_the_package_does_not_import_torch() -> None:
    check = "import engine_server, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
