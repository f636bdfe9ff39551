"""The kernels of the level amx for CPUs without AMX: the same sources, with the intrinsics of tiles emulated."""

from pathlib import Path
from subprocess import run

import pytest

from engine_server.modeling.native import build
from engine_server.modeling.native.levels import FOLDER, LEVELS, library_file, supported_levels

EMULATED = "amx-emulated"
# The levels whose instructions amx has besides the tiles; one of them lends the kernels without tiles.
BASES = ("avx512-vnni", "avx512")
INTRINSICS = Path(__file__).parent / "modeling" / "emulated_tiles.h"


def emulated_tiles(folder: Path) -> Path:
    """Compile the sources that use tiles, and return a library of those and a base level's other kernels.

    Skips the test on a machine where that is impossible.
    """
    compiler = build.find_compiler()
    usable = [level for level in BASES if level in supported_levels() and library_file(level).exists()]
    if compiler is None or not usable:
        pytest.skip("emulated tiles need g++, a CPU with AVX-512 and the kernels compiled for it")
    base = usable[0]
    options = [compiler, *build.FLAGS, *LEVELS[base].options, "-include", str(INTRINSICS)]

    def uses_tiles(source: Path) -> bool:
        included = run([*options, "-MM", str(source)], capture_output=True, text=True, check=True).stdout
        return str(FOLDER / "tiles.h") in included

    sources = [str(source) for source in sorted(FOLDER.glob("*.cpp")) if uses_tiles(source)]
    assert sources, "no source uses tiles"
    library = folder / f"kernels-{EMULATED}.so"
    run([*options, "-shared", *sources, str(library_file(base)), "-o", str(library)], check=True)
    return library
