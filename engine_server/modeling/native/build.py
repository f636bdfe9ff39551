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
# Instruction levels of g++, by torch's name of a CPU's capability.
LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}
# The oldest supported version of g++.
OLDEST = 11
FLAGS = (
    "-std=c++20", "-O3", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno",
    "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip


def library_file(capability: str) -> Path:
    """Return the library for a CPU of torch's `capability`; it may not exist."""
    return FOLDER / f"kernels-{LEVELS.get(capability, platform.machine())}.so"


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
    for capability, level in LEVELS.items():
        library = library_file(capability)
        unfinished = library.with_suffix(f".{os.getpid()}")
        sources = map(str, sorted(FOLDER.glob("*.cpp")))
        command = [compiler, *FLAGS, f"-march={level}", *sources, "-o", str(unfinished)]
        subprocess.run(command, check=True)
        unfinished.replace(library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
