"""The kernels of levels that this CPU lacks: the same sources, with the intrinsics that it lacks emulated."""

from pathlib import Path
from subprocess import run

import pytest

from engine_server.modeling.native import build
from engine_server.modeling.native.levels import FOLDER, LEVELS

INTRINSICS = Path(__file__).parent / "modeling"
AVX512 = ("-include", str(INTRINSICS / "emulated_avx512.h"))
TILES = ("-include", str(INTRINSICS / "emulated_tiles.h"))
# The options of g++, for a CPU with AVX2.
EMULATED = {
    "avx2-vnni": ("-DEMULATED_AVX2_VNNI", *AVX512),
    "avx512": AVX512,
    "avx512-vnni": ("-DEMULATED_VNNI", *AVX512),
    "avx512-bf16": ("-DEMULATED_VNNI", "-DEMULATED_BF16", *AVX512),
    "amx": ("-DEMULATED_VNNI", *AVX512, *TILES),
}


def emulated(level: str, folder: Path) -> Path:
    """Compile the library of a level, one of `EMULATED`. Skips the test on a machine where that is impossible."""
    compiler = build.find_compiler()
    if compiler is None:
        pytest.skip("emulated kernels need g++ and a CPU with AVX2")
    library = folder / f"kernels-{level}.so"
    options = (*build.FLAGS, "-O1", *LEVELS["avx2"].options, *EMULATED[level])  # compiles in half the time
    run(
        [compiler, *options, "-shared", *map(str, sorted(FOLDER.glob("*.cpp"))), "-o", str(library)],
        check=True,
    )
    return library
