"""Fixtures of the tests of native kernels."""

from collections.abc import Iterator

import pytest

from engine_server.modeling.native import library


@pytest.fixture(scope="module", params=library.supported_levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Load the kernels of one instruction level."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "instruction_level", lambda: request.param)
        library.kernels.cache_clear()
        yield request.param
    library.kernels.cache_clear()
