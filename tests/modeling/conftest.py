"""Fixtures of the tests of native kernels."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from emulated_levels import EMULATED, emulated

from engine_server.modeling.native import library
from engine_server.modeling.native.levels import instruction_level, supported_levels

OWN, *OTHERS = dict.fromkeys([instruction_level(), *supported_levels()])
LACKING = [level for level in EMULATED if level not in supported_levels()]
LEVELS = [OWN, *(pytest.param(other, marks=pytest.mark.thorough) for other in (*OTHERS, *LACKING))]


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that compiles the kernels of a level that this CPU lacks, each once."""
    return cache(lambda level: emulated(level, tmp_path_factory.mktemp("kernels")))


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Load the kernels of an instruction level: this machine's, and in the thorough tier all, emulated if needed."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param in LACKING:
            compiled = request.getfixturevalue("emulated_library")(request.param)
            patch.setattr(library, "library_file", lambda level: compiled)
        patch.setattr(library, "instruction_level", lambda held=None: request.param)
        library.kernels.cache_clear()
        yield request.param
    library.kernels.cache_clear()
