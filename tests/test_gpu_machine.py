"""The check, without a GPU, of what the first run on a GPU machine imports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
WHEELS = re.findall(r"^GPU_WHEELS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def check(*wheels: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tests/gpu_machine.py", *wheels]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.thorough
def test_wheels_bring_all_that_benchmark_and_tests_import_on_a_gpu_machine() -> None:
    done = check(*WHEELS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/kernels/test_kernel_attention.py: " in done.stdout
    assert "tests/gpu/test_gpu_memory.py: " in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("missing", ["llguidance", "sortedcontainers"])
def test_package_that_the_wheels_do_not_bring_is_noticed(missing: str) -> None:
    done = check(*(name for name in WHEELS if name != missing))
    assert done.returncode and f"No module named '{missing}'" in done.stdout + done.stderr
