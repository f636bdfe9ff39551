"""Compile the kernels, each level of instructions into a library of its own beside the source.

    python -m engine_server.modeling.native.build

It takes g++ 11 or later; Clang has another notation for vectors. The kernels share OpenMP's threads with torch: both
are linked to libgomp.so.1.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path
from shutil import which

FOLDER = Path(__file__).parent
LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}  # by what torch calls a CPU's capability
OLDEST = 11  # of g++, that knows these levels
FLAGS = (
    "-std=c++20", "-O3", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno",
    "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip


def library_file(capability: str) -> Path:
    return FOLDER / f"kernels-{LEVELS.get(capability, platform.machine())}.so"


def find_compiler() -> str | None:
    """None where there is none, or none that compiles for this machine."""
    found = which("g++")
    if found is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    told = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return found if int(told.split(".")[0]) >= OLDEST else None


def main() -> int:
    compiler = find_compiler()
    if compiler is None:
        print(
            "the CPU kernels take Linux on x86-64 and g++ 11; without them plain torch does their work, slower"
        )
        return 0
    for capability, level in LEVELS.items():
        made = library_file(capability)
        unfinished = made.with_suffix(f".{os.getpid()}")
        sources = map(str, sorted(FOLDER.glob("*.cpp")))
        command = [compiler, *FLAGS, f"-march={level}", *sources, "-o", str(unfinished)]
        subprocess.run(command, check=True)
        unfinished.replace(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
