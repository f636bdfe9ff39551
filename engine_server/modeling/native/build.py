"""Compile the CPU kernels: one library for each instruction level, in the sources' folder.

    python -m engine_server.modeling.native.build

This needs g++ 11 or later; Clang's vector syntax differs. The kernels share OpenMP's threads with torch, since both
are linked to libgomp.so.1.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path
from shutil import which

FOLDER = Path(__file__).parent
# Instruction levels with g++'s options for them, the fastest first.
LEVELS = {
    "avx512-bf16": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    "avx512-vnni": ("-march=x86-64-v4", "-mavx512vnni"),
    "avx512": ("-march=x86-64-v4",),
    "avx2-vnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx2": ("-march=x86-64-v3",),
}
# The oldest supported version of g++.
OLDEST = 11
FLAGS = (
    "-std=c++20", "-O3", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno",
    "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip


def library_file(level: str) -> Path:
    """Return the library of an instruction level; it may not exist."""
    return FOLDER / f"kernels-{level}.so"


def find_compiler() -> str | None:
    """Return the path of a g++ that compiles for this machine, or None."""
    found = which("g++")
    if found is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    version = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return found if int(version.split(".")[0]) >= OLDEST else None


def main() -> int:
    compiler = find_compiler()
    if compiler is None:
        print(
            "the CPU kernels need Linux on x86-64 and g++ 11; without them plain torch is used, which is slower"
        )
        return 0
    for level, options in LEVELS.items():
        library = library_file(level)
        unfinished = library.with_suffix(f".{os.getpid()}.so")
        sources = map(str, sorted(FOLDER.glob("*.cpp")))
        command = [compiler, *FLAGS, *options, *sources, "-o", str(unfinished)]
        subprocess.run(command, check=True)
        unfinished.replace(library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
