"""The passes' reports for every architecture, with the CPU kernels and with plain torch."""

import pytest
from native_kernels import needs_kernels
from pass_reports import OTHERS, QUICK, assert_reports_unchanged
from unapplied import assert_left_out_and_named

from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.replacements.activations import ACTIVATIONS
from engine_server.modeling.replacements.decoder_layers import DECODER_LAYERS
from engine_server.modeling.replacements.gates import GATES
from engine_server.modeling.replacements.layer_norms import LAYER_NORMS
from engine_server.modeling.replacements.mlps import MLPS
from engine_server.modeling.replacements.norms import NORMS
from engine_server.modeling.replacements.replacement import Replacement
from engine_server.modeling.replacements.rotations import ROTATIONS

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
    ("kind", "named", "architecture"),
    [
        (MLPS, "LlamaMLP", "llama"),
        (NORMS, "LlamaRMSNorm", "llama"),
        (LAYER_NORMS, "LayerNorm", "gpt2"),
        (GATES, "GatedMLP", "llama"),
        (ACTIVATIONS, "NewGELUActivation", "gpt2"),
        (ROTATIONS, "apply_rotary_pos_emb", "llama"),
        (DECODER_LAYERS, "LlamaDecoderLayer", "llama"),
    ],
)
def test_replacement_that_is_not_applied_is_left_out_and_named(
    kind: Replacement,
    named: str,
    architecture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert_left_out_and_named(kind, named, architecture, NativePlatform(), monkeypatch, caplog)
