"""Servers of the small model as one that thinks: its marks are text, or tokens."""

from collections.abc import Iterator

import pytest
from local_server import LocalServer, serving, serving_model
from thinking_models import MODEL, with_marks, write_template

MARKS = ("text", "tokens")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The models, by the kind of their marks."""
    return {"text": MODEL, "tokens": with_marks(tmp_path_factory.mktemp("model"))}


@pytest.fixture(scope="session")
def thinking_flag(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_template(tmp_path_factory.mktemp("thinking"))


@pytest.fixture(scope="session", params=MARKS)
def thinking(
    request: pytest.FixtureRequest, models: dict[str, str], thinking_flag: str
) -> Iterator[LocalServer]:
    """A scripted server of each kind."""
    with serving(thinking_flag, model=models[request.param], names=["smollm2"]) as server:
        yield server


@pytest.fixture(scope="session")
def thinking_model(thinking_flag: str) -> Iterator[LocalServer]:
    """The real model, whose marks are text."""
    with serving_model(thinking_flag, names=["smollm2"]) as server:
        yield server


@pytest.fixture(scope="session")
def marked_model(models: dict[str, str], thinking_flag: str) -> Iterator[LocalServer]:
    """The real model, whose marks are tokens."""
    with serving_model(thinking_flag, model=models["tokens"], names=["smollm2"]) as server:
        yield server
