"""Run on a machine with a GPU everything that can fail there, within ten minutes, and write one report.

    python3 tests/gpu_run.py [--output FILE]

Needs what `make wheels` has collected in build/wheels on another machine. Stages that fail, or take longer than they
may, do not keep the others from running; the exit status is 1 then. Each file of tests has a process of its own, since
a failure of the device spoils its process. Those of tests/gpu run alone, since some measure the memory that is free.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
BENCHMARK = ROOT / "build" / "gpu.json"
PYTHON = sys.executable
INSTALL = [PYTHON, "-m", "pip", "install", "--no-index", "--no-deps", "--upgrade", "--target", str(SITE)]
VERSIONS = """
import platform, sys, numpy, torch, transformers, triton
print("python", platform.python_version(), "torch", torch.__version__, "triton", triton.__version__,
      "transformers", transformers.__version__, "numpy", numpy.__version__)
print(torch.cuda.get_device_properties(0), "capability", torch.cuda.get_device_capability(0))
from engine_server.modeling.platform.triton_check import check_triton
check_triton(torch.device("cuda", 0))
import engine_server.engine, benchmarks.gpu.load, benchmarks.gpu.attention, benchmarks.gpu.layers
"""


class Stage(NamedTuple):
    name: str
    # For all of its commands together.
    seconds: int
    # Each has an output of its own.
    commands: Sequence[Sequence[str]]
    # How many of the commands run at once.
    workers: int = 1


class Result(NamedTuple):
    command: Sequence[str]
    # None: it took too long.
    status: int | None
    seconds: float
    output: str

    def __str__(self) -> str:
        ended = "took too long" if self.status is None else f"status {self.status}"
        return f"-- {' '.join(self.command)}\n-- {ended}, {self.seconds:.0f} s\n{self.output}"


def stages() -> Iterator[Stage]:
    """Yield the stages in order; all together take less than ten minutes."""
    kernels, gpu = (
        sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda file: file.stem != "test_gpu_steps")
        for folder in ("kernels", "gpu")
    )
    yield Stage("install", 30, [[*INSTALL, *map(str, sorted((ROOT / "build" / "wheels").glob("*.whl")))]])
    yield Stage("versions", 60, [[PYTHON, "-c", VERSIONS]])
    steps = pytest(gpu[0], "-k", "cuda-")
    yield Stage("steps and kernels", 200, [steps, *map(pytest, kernels)], workers=12)
    yield Stage("gpu", 130, [pytest(file) for file in gpu[1:]])
    parts = ("kernels", "Llama-3.1-8B")
    yield Stage(
        "benchmark",
        170,
        [[PYTHON, "-m", "benchmarks.gpu", "--only", *parts, "--output", str(BENCHMARK)]],
    )


def pytest(file: Path, *options: str) -> list[str]:
    """Return the command for all tests of a file, thorough ones too."""
    return [PYTHON, "-m", "pytest", "-q", "-m", "", "-rs", *options, str(file.relative_to(ROOT))]


def run(command: Sequence[str], end: float) -> Result:
    """Run a command until `end` (time.monotonic) at most, and end what it has started."""
    begun = time.monotonic()
    path = os.pathsep.join(map(str, (SITE, ROOT, ROOT / "operator")))
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(0.1, end - begun))
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = None
    return Result(command, status, time.monotonic() - begun, output)


def run_stage(stage: Stage) -> list[Result]:
    end = time.monotonic() + stage.seconds
    with ThreadPoolExecutor(stage.workers) as pool:
        return [*pool.map(lambda command: run(command, end), stage.commands)]


def report(planned: Sequence[Stage], file: Path) -> bool:
    """Run stages, and write what they print as soon as each has ended; return True if all passed."""
    passed = True
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        for stage in planned:
            results = run_stage(stage)
            failed = [result for result in results if result.status != 0]
            passed = passed and not failed
            line = f"== {stage.name}: {len(results)} run, {len(failed)} failed"
            print(line, flush=True)
            print(line, *results, sep="\n", file=out, flush=True)
        print("== passed" if passed else "== failed", file=out)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-run.txt", metavar="FILE")
    file: Path = parser.parse_args().output
    passed = report([*stages()], file)
    print(f"wrote {file}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
