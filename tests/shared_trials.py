"""Trials of a model's replacements, shared by the engines of a process: half of a tiny engine's start is its trial.

The first engine of each model, dtype and kind of device makes the trial, and the others take its choices. Tests of the
trial itself, in tests/modeling, share none. A trial that finds a replacement which is applied nowhere fails its test.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# The choices by what a trial depends on, with the kernels, whose address is a part of that.
Choices = dict[tuple[Any, ...], tuple[Any, Any]]


TRIAL = "engine_server.modeling.loader.trial"


@pytest.fixture(autouse=True)
def every_choice_is_applied(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail tests in which a trial logs an error; one that provokes it clears `caplog`."""
    yield
    records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
    assert not [
        record.getMessage() for record in records if record.name == TRIAL and record.levelno >= logging.ERROR
    ]


@pytest.fixture(scope="session")
def choices() -> Choices:
    return {}


@contextmanager
def sharing(choices: Choices) -> Iterator[None]:
    """Make the trials of this process share `choices` within the context."""
    from engine_server.modeling.drafting import reading
    from engine_server.modeling.layers.weight_layer import original_class
    from engine_server.modeling.loader import model_loader
    from engine_server.modeling.loader.passes import verified_choices

    def shared_choices(model: Any, platform: Any, context: int = sys.maxsize) -> Any:
        settings, kernels = model.config.to_dict(), platform.module_kernels
        del settings["_name_or_path"]
        device = (type(platform), platform.device, id(kernels))
        key = (original_class(model), repr(settings), model.dtype, *device, context)
        if key not in choices:
            choices[key] = kernels, verified_choices(model, platform, context)
        return choices[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_loader, "verified_choices", shared_choices)
        patch.setattr(reading, "verified_choices", shared_choices)
        yield


@pytest.fixture(scope="module")
def shared_trials(choices: Choices) -> Iterator[None]:
    with sharing(choices):
        yield
