"""Engines of one model share the trial of its replacements."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def trials(shared_trials: None) -> None:
    pass
