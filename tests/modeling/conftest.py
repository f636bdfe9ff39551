"""Fixtures of the tests of native kernels."""

from collections.abc import Iterator

import pytest

from engine_server.modeling.native import library

OWN, *OTHERS = dict.fromkeys([library.instruction_level(), *library.supported_levels()])
LEVELS = [OWN, *(pytest.param(other, marks=pytest.mark.thorough) for other in OTHERS)]


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Load the kernels of an instruction level: this machine's own, and in the thorough tier all that its CPU has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "instruction_level", lambda: request.param)
        library.kernels.cache_clear()
        yield request.param
    library.kernels.cache_clear()
