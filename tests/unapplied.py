"""Kinds of replacements that are not applied."""

from typing import Any

import pytest
from pass_reports import architecture_named, build

from engine_server.modeling.loader.passes import verified_choices
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.replacements.replacement import Replacement
from engine_server.modeling.replacements.report import PassReport


def assert_left_out_and_named(
    kind: Replacement,
    named: str,
    architecture: str,
    platform: Platform,
    patch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Check that a kind is chosen for an architecture, and left out where it isn't applied.

    named: the class or function in the error.
    """
    model = build(architecture_named(architecture))
    assert verified_choices(model, platform)[kind]

    apply = Replacement.apply

    def apply_others(self: Replacement, *given: Any) -> PassReport:
        return PassReport(self.name, {}, {}) if self is kind else apply(self, *given)

    patch.setattr(Replacement, "apply", apply_others)
    assert not verified_choices(model, platform)[kind]
    assert f"{kind.name}: nothing is replaced, since none of {named} is in the copy" in caplog.messages
    caplog.clear()
