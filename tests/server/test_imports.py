"""The imports of `fairlead engine` before the engine core starts, and before the server listens."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [("command", ("torch", "transformers", "fastapi")), ("preparation", ("torch", "transformers"))],
)
def test_imports_that_take_long_are_left_for_later(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, engine_server.server.{module}; print(sorted(set({absent}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
