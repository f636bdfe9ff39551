"""The speed of a machine in one short table, to be pasted beside every figure that is measured on it.

    python -m benchmarks.yardstick

takes about 20 s. Each figure is the best of a few, so that a moment's load does not count; the load average and the
CPU's steal, before and after, tell whether the machine was busy all the time.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Set
from importlib.util import find_spec
from pathlib import Path

from engine_server.modeling.native import build, levels

# A source, compiled for a level that every supported CPU can be compiled for.
SOURCE, LEVEL = "attention.cpp", "avx2"
IMPORTS = "import torch; import transformers.models.llama.modeling_llama"
# The package that is unpacked.
PACKAGE = "numpy"
READ_BYTES = 1 << 29
# Rows and columns of the matrices.
SIDE = 2048
# Fields of a CPU's line in /proc/stat.
STEAL, FIELDS = 7, 8


def main() -> None:
    load, steal = os.getloadavg()[0], stolen()
    figures = {
        "compile s": seconds(compile_kernel) if build.find_compiler() else "no g++",
        "import s": seconds(import_libraries, 2),
        "memory GB/s": READ_BYTES / 1e9 / reading(),
        "product GFLOP/s": 2 * SIDE**3 / 1e9 / multiplying(),
        "unpack MB/s": unpacking(),
    }
    row = {"machine": f"{kind(levels.instructions())}: {cpu_name()}, {os.cpu_count()} CPUs"}
    row |= {name: f"{value:.1f}" if isinstance(value, float) else value for name, value in figures.items()}
    row["load"] = f"{load:.1f}, {os.getloadavg()[0]:.1f}"
    row["steal"] = f"{steal:.0%}, {stolen():.0%}"
    for cells in (row, ["---"] * len(row), row.values()):
        print(f"| {' | '.join(cells)} |")


def kind(instructions: Set[str]) -> str:
    """Return the kind of a CPU with these instructions: amx, avx512, avx2, or its architecture."""
    if "amx_bf16" in instructions:
        return "amx"
    supported = levels.supported_levels(instructions)
    return next((name for name in ("avx512", "avx2") if name in supported), platform.machine())


def cpu_name() -> str:
    lines = levels.CPU_INFO.read_text().splitlines() if levels.CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def stolen() -> float:
    """Return the share of the next second that the hypervisor gives to others; 0 where it is not known."""
    before = cpu_times()
    time.sleep(1)
    spent = [after - earlier for after, earlier in zip(cpu_times(), before, strict=True)]
    return spent[STEAL] / max(1, sum(spent))


def cpu_times() -> list[int]:
    """Return the ticks of all CPUs in each state since the system's start."""
    stat = Path("/proc/stat")
    return list(map(int, stat.read_text().split()[1 : FIELDS + 1])) if stat.exists() else [0] * FIELDS


def seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Return the shortest time that `work` takes."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def compile_kernel() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = str(levels.FOLDER / SOURCE)
        build.run(str(build.find_compiler()), LEVEL, "-c", source, "-o", f"{folder}/kernel.o")


def import_libraries() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def reading(size: int = READ_BYTES) -> float:
    """Return the seconds in which all CPUs read as many bytes of memory."""
    import torch

    values = torch.ones(size // 4)
    return seconds(values.sum, 10)


def multiplying() -> float:
    """Return the seconds of a product of two matrices in float32 on all CPUs."""
    import torch

    left, right = torch.rand(2, SIDE, SIDE)
    return seconds(lambda: left @ right, 5)


def unpacking() -> float:
    """Return the speed at which a wheel is unpacked: megabytes of files a second."""
    found = find_spec(PACKAGE)
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, "package.whl")
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in package.rglob("*"):
                archive.write(file, file.relative_to(package.parent))
        with zipfile.ZipFile(wheel) as archive:
            size = sum(member.file_size for member in archive.infolist())
            return size / 1e6 / seconds(lambda: archive.extractall(folder), 2)


if __name__ == "__main__":
    main()
