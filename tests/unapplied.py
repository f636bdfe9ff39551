"""Kinds of replacements that the trial does not apply to its copy."""

from typing import Any

import pytest
from pass_reports import architecture_named, build

from engine_server.modeling.loading import trial
from engine_server.modeling.loading.passes import verified_choices
from engine_server.modeling.loading.report import PassReport
from engine_server.modeling.platform.interface import Platform


def assert_left_out_and_named(
    applier: str,
    kind: str,
    named: str,
    architecture: str,
    platform: Platform,
    patch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Check that a kind is chosen for an architecture, and left out where the trial doesn't apply it.

    applier: the name of the trial's function. named: the class or function in the error.
    """
    model = build(architecture_named(architecture))
    assert getattr(verified_choices(model, platform), kind)

    def apply_nothing(*_: Any) -> PassReport:
        return PassReport(kind, {}, {})

    patch.setattr(trial, applier, apply_nothing)
    assert not getattr(verified_choices(model, platform), kind)
    assert f"no {kind} are replaced: in the two-layer copy none is of {named}" in caplog.messages
    caplog.clear()
