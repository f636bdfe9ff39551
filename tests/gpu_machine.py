"""Import the GPU benchmark, and collect the tests of kernels and GPUs, with what a GPU machine has and nothing else.

    TRITON_INTERPRET=1 python tests/gpu_machine.py PACKAGE ...

The packages are those that `make wheels` brings. Others that such a machine lacks are not found, as they would not be
there.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    PackageNotFoundError,
    packages_distributions,
    requires,
)
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# With Python 3.12; what they require is there too.
INSTALLED = ("torch", "triton", "transformers", "numpy", "peft", "pytest", "setuptools")
FOLDERS = ("tests/gpu", "tests/kernels")


def required(names: Sequence[str]) -> set[str]:
    """Return packages and what they require, by normalised names."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = normalised(left.pop())
        if name in found:
            continue
        found.add(name)
        try:
            parts = map(Requirement, requires(name) or ())
        except PackageNotFoundError:  # for another platform
            continue
        left += [part.name for part in parts if part.marker is None or part.marker.evaluate({"extra": ""})]
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Finder(MetaPathFinder):
    """Finds modules as usual, apart from those that a GPU machine lacks."""

    def __init__(self, brought: Iterable[str]) -> None:
        own = {"engine_server", "benchmarks"}
        self._there = there = required(INSTALLED) | set(map(normalised, brought))
        self._absent = {
            module
            for module, packages in packages_distributions().items()
            if not there & set(map(normalised, packages)) and module not in own
        }

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._absent:
            return None
        return PathFinder.find_spec(fullname, path, target)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Yield the packages that `importlib.metadata` finds, by which transformers decides what it may use."""
        for distribution in PathFinder.find_distributions(context):
            if normalised(distribution.name) in self._there:
                yield distribution


def main() -> int:
    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder(sys.argv[1:])
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for file in sorted(Path("benchmarks/gpu").glob("[!_]*.py")):
        importlib.import_module(".".join(file.with_suffix("").parts))
    return pytest.main(["--collect-only", "-qq", "-m", "", *FOLDERS])


if __name__ == "__main__":
    sys.exit(main())
