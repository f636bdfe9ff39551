"""Compile the CPU kernels: one library for each instruction level, in the sources' folder.

    python -m engine_server.modeling.native.build [--all]

compiles this machine's own level, and the next one where tiles (AMX) may be refused at a start; or with --all every
level, for an image or a wheel. Libraries that are newer than
their sources are kept. This needs g++ 11 or later; Clang's vector syntax differs.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

from engine_server.modeling.native.levels import (
    AMX,
    FOLDER,
    LEVELS,
    instruction_level,
    instructions,
    library_file,
)

# The oldest supported version of g++.
OLDEST = 11
FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno",
    "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip


def find_compiler() -> str | None:
    """Return the path of a g++ that compiles for this machine, or None."""
    found = which("g++")
    if found is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    version = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return found if int(version.split(".")[0]) >= OLDEST else None


def outdated(level: str) -> bool:
    """Return True if the library of a level is missing, or older than a file that it is made from."""
    library = library_file(level)
    sources = [file for pattern in ("*.cpp", "*.h", "build.py", "levels.py") for file in FOLDER.glob(pattern)]
    return not library.exists() or library.stat().st_mtime < max(file.stat().st_mtime for file in sources)


def compile_levels(compiler: str, levels: Sequence[str]) -> None:
    """Compile every source for each level, as many at a time as there are CPUs, and link the libraries."""
    sources = sorted(FOLDER.glob("*.cpp"))
    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cpus) as jobs:

        def compile_source(source: Path, level: str) -> str:
            made = f"{folder}/{source.stem}-{level}.o"
            run(compiler, level, "-c", str(source), "-o", made)
            return made

        # The largest source takes longest, so it starts first.
        starts = sorted(sources, key=lambda source: source.stat().st_size, reverse=True)
        objects = {
            (level, source): jobs.submit(compile_source, source, level)
            for level in levels
            for source in starts
        }
        for level in levels:
            link(compiler, level, [objects[level, source].result() for source in sources])


def link(compiler: str, level: str, objects: Sequence[str]) -> None:
    """Link a level's library, which replaces the earlier one at once.

    libgomp is not among the libraries that it names: torch brings its own, which the loader provides.
    """
    library = library_file(level)
    unfinished = library.with_suffix(f".{os.getpid()}.so")
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", str(unfinished)], check=True)
    unfinished.replace(library)


def run(compiler: str, level: str, *arguments: str) -> None:
    subprocess.run([compiler, *FLAGS, *LEVELS[level].options, *arguments], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument(
        "--all", action="store_true", help="every instruction level, not this machine's alone"
    )
    own = dict.fromkeys([instruction_level(), instruction_level(instructions() - AMX)])
    wanted = list(LEVELS if parser.parse_args(argv).all else own)
    compiler = find_compiler()
    if compiler is None or not LEVELS.keys() >= set(wanted):
        print(
            "the CPU kernels need Linux, a CPU with AVX2 and g++ 11; without them plain torch is used, which is slower"
        )
        return 0
    if levels := [level for level in wanted if outdated(level)]:
        compile_levels(compiler, levels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
