"""Requests that schemathesis generates from the published OpenAPI document: none may be answered with a 5xx."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_client import ApiClient
from engine_process import running_engine
from local_server import serving

NAME = "smollm2"
# A short context bounds the answers of requests that ask for no limit.
CONTEXT = 64
FLAGS = (f"--max-model-len={CONTEXT}", "--enable-tokenizer-info-endpoint")
TOKEN_LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}


@pytest.mark.more
def test_few_generated_requests_get_no_server_error(tmp_path: Path) -> None:
    with serving(*FLAGS) as server:
        check_generated_requests(server, tmp_path, "fuzzing", examples=1, least=20)


@pytest.mark.thorough
def test_generated_requests_get_no_server_error_from_a_model(tmp_path: Path) -> None:
    with running_engine(*FLAGS) as server:
        server.wait_until_ready()
        check_generated_requests(server, tmp_path, "coverage,fuzzing", examples=100, least=2000)


def check_generated_requests(server: ApiClient, folder: Path, phases: str, examples: int, least: int) -> None:
    """Send some examples for each operation, and check the number of requests in all."""
    document = server.get("/openapi.json").json
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in properties:  # else every case would end with 404
            properties["model"] = {"enum": [NAME]}
            schema["required"] = sorted({*schema.get("required", ()), "model"})
        for name in TOKEN_LIMITS & properties.keys():  # few tokens, or the engine computes for an hour
            properties[name] = {"type": "integer", "minimum": 1, "maximum": 4}
            schema["required"] = sorted({*schema.get("required", ()), name})
    path = folder / "openapi.json"
    path.write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--no-color",
        "run",
        str(path),
        f"--url={server.url}",
    ]
    command += ["--checks=not_a_server_error", f"--max-examples={examples}", "--no-shrink"]
    ended = subprocess.run(
        [*command, f"--phases={phases}", "--request-timeout=120", "--generation-deterministic"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        cwd=folder,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    generated = re.search(r"(\d+) generated", ended.stdout)
    assert generated and int(generated[1]) >= least, ended.stdout[-2000:]
    assert server.get("/health").status == 200
