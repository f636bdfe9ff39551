"""Build hook: a wheel holds the CPU kernels of every instruction level, compiled here if there is g++.

Its tag is `py3-none-manylinux_2_N_x86_64` for the oldest glibc, 2.N, that has all symbols of the libraries. Without a
compiler the wheel has no kernels and is `py3-none-any`: the engine warns at its start, and computes with plain torch.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "engine_server.modeling.native.build"
LIBRARIES = "engine_server/modeling/native/kernels-*.so"
# A version of symbols among the names that the dynamic loader reads; the kernels have no such text of their own.
GLIBC_SYMBOLS = re.compile(rb"GLIBC_2\.(\d+)")


class KernelHook(BuildHookInterface[Any]):
    """Compile the kernels for a wheel, and set its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # `make` compiles this machine's level alone
        subprocess.run([sys.executable, "-m", BUILD, "--all"], cwd=self.root, check=True)
        if libraries := sorted(Path(self.root).glob(LIBRARIES)):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(libraries)}"


def platform_tag(libraries: Iterable[Path]) -> str:
    """Return the tag of the systems on which all libraries, of x86-64, find their symbols."""
    needed = (int(minor) for library in libraries for minor in GLIBC_SYMBOLS.findall(library.read_bytes()))
    return f"manylinux_2_{max(needed)}_x86_64"
