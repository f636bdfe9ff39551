"""Requests that schemathesis generates from the published OpenAPI document: none may be answered with a 5xx."""

import json
import re
import subprocess
import sys

import pytest

NAME = "smollm2"
pytestmark = pytest.mark.thorough
CASES_PER_OPERATION = 100
LEAST_CASES = 2000
# A short context bounds the answers of requests that ask for no limit.
CONTEXT = 64
TOKEN_LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}


def test_generated_requests_get_no_server_error(start_server, tmp_path) -> None:
    server = start_server(f"--max-model-len={CONTEXT}", "--enable-tokenizer-info-endpoint")
    server.wait_for_line("^phase ready ")
    document = server.get("/openapi.json").json
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in properties:  # else every case would end with 404
            properties["model"] = {"enum": [NAME]}
            schema["required"] = sorted({*schema.get("required", ()), "model"})
        for name in TOKEN_LIMITS & properties.keys():  # few tokens, or the engine computes for an hour
            properties[name] = {"type": "integer", "minimum": 1, "maximum": 4}
            schema["required"] = sorted({*schema.get("required", ()), name})
    path = tmp_path / "openapi.json"
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
    command += ["--checks=not_a_server_error", f"--max-examples={CASES_PER_OPERATION}", "--no-shrink"]
    ended = subprocess.run(
        [*command, "--phases=coverage,fuzzing", "--request-timeout=120", "--generation-deterministic"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    generated = re.search(r"(\d+) generated", ended.stdout)
    assert generated and int(generated[1]) >= LEAST_CASES, ended.stdout[-2000:]
    assert server.get("/health").status == 200
