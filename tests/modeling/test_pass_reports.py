"""The passes' reports for every architecture, with the CPU kernels and with plain torch."""

import pytest
from native_kernels import needs_kernels
from pass_reports import OTHERS, QUICK, assert_reports_unchanged
from unapplied import assert_left_out_and_named

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


@needs_kernels
@pytest.mark.parametrize(
    ("applier", "kind", "named", "architecture"),
    [
        ("fuse_mlps", "mlps", "LlamaMLP", "llama"),
        ("replace_norms", "norms", "LlamaRMSNorm", "llama"),
        ("replace_layer_norms", "layer_norms", "LayerNorm", "gpt2"),
        ("replace_gates", "gates", "GatedMLP", "llama"),
        ("replace_activations", "activations", "NewGELUActivation", "gpt2"),
        ("replace_rotations", "rotations", "apply_rotary_pos_emb", "llama"),
        ("replace_layers", "layers", "LlamaDecoderLayer", "llama"),
    ],
)
def test_replacement_that_the_trial_does_not_apply_is_left_out_and_named(
    applier: str,
    kind: str,
    named: str,
    architecture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert_left_out_and_named(applier, kind, named, architecture, NativePlatform(), monkeypatch, caplog)
