"""Fixtures of the tests of native kernels."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_tiles import EMULATED, emulated_tiles

from engine_server.modeling.native import library
from engine_server.modeling.native.levels import instruction_level, supported_levels

OWN, *OTHERS = dict.fromkeys([instruction_level(), *supported_levels()])
LEVELS = [OWN, *(pytest.param(other, marks=pytest.mark.thorough) for other in (*OTHERS, EMULATED))]


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the kernels of the level amx with its tiles emulated, once."""
    return emulated_tiles(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Load the kernels of an instruction level: this machine's own, and in the thorough tier all that its CPU has.

    There the level amx runs on every CPU with AVX-512, with emulated tiles.
    """
    emulated = request.param == EMULATED
    name = "amx" if emulated else request.param
    with pytest.MonkeyPatch.context() as patch:
        if emulated:
            compiled = request.getfixturevalue("emulated_library")
            patch.setattr(library, "library_file", lambda level: compiled)
        patch.setattr(library, "instruction_level", lambda held=None: name)
        library.kernels.cache_clear()
        yield request.param
    library.kernels.cache_clear()
