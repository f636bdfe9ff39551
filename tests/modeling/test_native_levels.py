"""The instruction levels of the C++ kernels. The other tests of kernels run at those that this CPU supports."""

import pytest

from engine_server.modeling.native import library
from engine_server.modeling.native.levels import LEVELS, supported_levels


@pytest.mark.thorough
@pytest.mark.parametrize("level", LEVELS)
def test_kernels_of_each_supported_level_load(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if level not in supported_levels():
        pytest.skip(f"the kernels for {level} are not tested: this CPU lacks its instructions")
    monkeypatch.setattr(library, "instruction_level", lambda: level)
    library.kernels.cache_clear()
    try:
        assert library.loads()
    finally:
        library.kernels.cache_clear()
