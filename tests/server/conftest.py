"""The servers that tests of all modules share, one of each kind in a process of pytest, started at its first use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from collector import collecting
from engine_process import EngineProcess, running_engine
from local_server import LocalServer, serving
from tiers import tiered

ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shared server's profiles."""
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="session")
def server(profiles: Path) -> Iterator[EngineProcess]:
    """A ready server of the small real model, for tests of its answers; none of them may end it."""
    with running_engine(
        "--max-logprobs=25",
        "--scheduling-policy=priority",
        "--enable-admin",
        "--admin-port=0",
        f"--torch-profiler-dir={profiles}",
    ) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="session")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def collector() -> Iterator[tuple[str, list[Any]]]:
    """The address that the scripted server posts spans to, and the spans."""
    with collecting() as (address, spans):
        yield address, spans


@pytest.fixture(scope="session")
def scripted(collector: tuple[str, list[Any]]) -> Iterator[LocalServer]:
    """A ready server with the small real model's tokenizer and no model, for tests of all but its answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # in milliseconds
        with serving(
            "--max-logprobs=25",
            "--scheduling-policy=priority",
            "--enable-tokenizer-info-endpoint",
            f"--otlp-traces-endpoint={collector[0]}",
        ) as server:
            patch.undo()
            yield server


@pytest.fixture(scope="session")
def scripted_client(scripted: LocalServer) -> Iterator[openai.OpenAI]:
    with scripted.client() as client:
        yield client


@pytest.fixture(scope="session", params=tiered(["scripted", "server"], "scripted"))
def tiered_server(request: pytest.FixtureRequest) -> Any:
    """The scripted server, and in the thorough tier the model's too."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def tiered_client(tiered_server: Any) -> Iterator[openai.OpenAI]:
    with tiered_server.client() as client:
        yield client


@pytest.fixture
def answering_client(tiered_server: Any) -> Iterator[openai.OpenAI]:
    """A client of a server that gives ANSWER, as the model does to a question about France."""
    with tiered_server.client() as client, tiered_server.saying(ANSWER):
        yield client
