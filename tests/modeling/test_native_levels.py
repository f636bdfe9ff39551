"""The instruction levels of the C++ kernels. The other tests of kernels run at those that this CPU supports."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_kernels import needs_kernels

from engine_server.modeling.native import library
from engine_server.modeling.native.levels import LEVELS, instruction_level, library_file, supported_levels
from engine_server.modeling.native.library import PRODUCT_DTYPES
from engine_server.modeling.native.tile_checks import computes_rightly


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


# Kernels that are wrong where tiles may be: each calls the right one with an argument changed.
WRONG: dict[str, Callable[..., Callable[..., None]]] = {
    "multiply_floating": lambda right: lambda dtype, *rest: right(PRODUCT_DTYPES[torch.float16], *rest),
    # The scale of the results depends on the number of rows.
    "multiply_integer": lambda right: lambda *given: right(*given[:-1], given[-1] * given[8]),
    # All tokens have the same score.
    "attention": lambda right: lambda *given: right(*given[:-4], 0.0, *given[-3:]),
}


@needs_kernels
@pytest.mark.parametrize(("wrong", "level"), [("", "amx"), *((name, "next") for name in WRONG)])
def test_level_with_tiles_is_used_only_if_its_results_are_right(
    wrong: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, load = library_file(instruction_level()), library.load

    def load_wrong(name: str) -> Any:
        found = load(name)
        if name == "amx" and wrong:
            setattr(found, wrong, WRONG[wrong](getattr(found, wrong)))
        return found

    monkeypatch.setattr(library, "library_file", lambda level: own)
    monkeypatch.setattr(library, "instruction_level", lambda held=None: "amx" if held is None else "next")
    monkeypatch.setattr(library, "load", load_wrong)
    library.kernels.cache_clear()
    try:
        assert library.kernels().level == level
    finally:
        library.kernels.cache_clear()


@needs_kernels
def test_kernels_of_every_level_pass_the_checks_of_tiles(level: str) -> None:
    assert computes_rightly(library.kernels())
