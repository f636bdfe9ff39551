"""The instruction levels of the C++ kernels. The other tests of kernels run at those that this CPU supports."""

import pytest
import torch
from native_kernels import needs_kernels

from engine_server.modeling.native import library
from engine_server.modeling.native.levels import LEVELS, instruction_level, library_file, supported_levels


@pytest.mark.thorough
@pytest.mark.parametrize("level", LEVELS)
def test_kernels_of_each_supported_level_load(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if level not in supported_levels():
        pytest.skip(f"the kernels for {level} are not tested: this CPU lacks its instructions")
    monkeypatch.setattr(library, "instruction_level", lambda held=None: level)
    library.kernels.cache_clear()
    try:
        assert library.loads()
    finally:
        library.kernels.cache_clear()


@needs_kernels
@pytest.mark.parametrize(("right", "level"), [(True, "amx"), (False, "next")])
def test_level_with_tiles_is_used_only_if_it_multiplies_rightly(
    right: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = library_file(instruction_level())
    monkeypatch.setattr(library, "library_file", lambda level: own)
    monkeypatch.setattr(library, "instruction_level", lambda held=None: "amx" if held is None else "next")
    if not right:  # the halves of the check's product are taken for those of another dtype
        monkeypatch.setitem(library.PRODUCT_DTYPES, torch.bfloat16, library.PRODUCT_DTYPES[torch.float16])
    library.kernels.cache_clear()
    try:
        assert library.kernels().level == level
    finally:
        library.kernels.cache_clear()
