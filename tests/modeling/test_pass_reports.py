"""The passes' reports for every architecture, with the CPU kernels and with plain torch."""

import pytest
from native_kernels import needs_kernels
from pass_reports import OTHERS, QUICK, assert_reports_unchanged

from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.interface import Platform

platforms = pytest.mark.parametrize(
    ("platform", "name"),
    [
        pytest.param(NativePlatform(), "native", id="native", marks=needs_kernels),
        pytest.param(CpuPlatform(), "torch", id="torch"),
    ],
)


@platforms
def test_passes_replace_the_recorded_modules(platform: Platform, name: str) -> None:
    assert_reports_unchanged(platform, name, QUICK)


@pytest.mark.more
@platforms
def test_passes_replace_the_recorded_modules_of_other_architectures(platform: Platform, name: str) -> None:
    assert_reports_unchanged(platform, name, OTHERS)
