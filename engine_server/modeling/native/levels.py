"""The instruction levels that the CPU kernels are compiled for, and those that this CPU supports.

This module needs neither torch nor a compiler, so that a machine's own level can be compiled before anything is loaded.
"""

import ctypes
import platform
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
CPU_INFO = Path("/proc/cpuinfo")
# Names of instructions as Linux lists them. x86-64-v3 and x86-64-v4 have more, which every CPU with these has too.
V3 = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"))
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
AMX = frozenset(("amx_tile", "amx_bf16", "amx_int8"))
# From Linux's asm/unistd_64.h, asm/prctl.h and asm/fpu/types.h.
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18


class Level(NamedTuple):
    """An instruction level: g++'s options for it, and the instructions that a CPU needs to run it."""

    options: tuple[str, ...]
    needs: frozenset[str]


# The fastest first.
LEVELS = {
    "amx": Level(
        ("-march=x86-64-v4", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        V4 | AMX | {"avx512_vnni"},
    ),
    "avx512-bf16": Level(
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"), V4 | {"avx512_vnni", "avx512_bf16"}
    ),
    "avx512-vnni": Level(("-march=x86-64-v4", "-mavx512vnni"), V4 | {"avx512_vnni"}),
    "avx512": Level(("-march=x86-64-v4",), V4),
    "avx2-vnni": Level(("-march=x86-64-v3", "-mavxvnni"), V3 | {"avx_vnni"}),
    "avx2": Level(("-march=x86-64-v3",), V3),
}


def library_file(level: str) -> Path:
    """Return the library of an instruction level; it may not exist."""
    return FOLDER / f"kernels-{level}.so"


@cache
def instructions() -> frozenset[str]:
    """Return the instructions of this CPU that the system lets this process use, by Linux's names; none elsewhere."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    listed = frozenset(flags.partition(":")[2].split())
    return listed if "amx_tile" not in listed or tiles_are_permitted() else listed - AMX


def tiles_are_permitted() -> bool:
    """Ask Linux to let this process, its threads and its forks use AMX's tiles; return False if it refuses."""
    system = ctypes.CDLL(None)
    numbers = (ctypes.c_long(number) for number in (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))
    return bool(system.syscall(*numbers) == 0)


def supported_levels(held: Set[str] | None = None) -> list[str]:
    """Return the levels that a CPU with the instructions `held` supports, this one by default, the fastest first."""
    held = instructions() if held is None else held
    return [name for name, level in LEVELS.items() if level.needs <= held]


def instruction_level(held: Set[str] | None = None) -> str:
    """Return the fastest level of a CPU with the instructions `held`, or the name of this machine's architecture.

    CPUs with float16 arithmetic (Intel's since Sapphire Rapids) issue a product of bfloat16 pairs every 2.1 cycles and
    two of float32 in each: there the level without the former multiplies 1.7 times as fast.
    """
    held = instructions() if held is None else held
    levels = supported_levels(held)
    if "avx512_fp16" in held:
        levels = [level for level in levels if level != "avx512-bf16"]
    return next(iter(levels), platform.machine())
