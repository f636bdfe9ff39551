"""The flags, the metrics and the first log lines of `fairlead engine`, as tests/snapshots.py compares them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import EngineProcess, running_engine
from prometheus_client.parser import text_string_to_metric_families
from snapshots import assert_unchanged, describe_metrics, help_of, labels_of_samples, without_variables

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="module")
def started() -> Iterator[EngineProcess]:
    """A server with every part that has metrics or logs its start; it has answered a request."""
    speculation = '--speculative-config={"method": "ngram", "num_speculative_tokens": 1}'
    with running_engine("--enable-admin", "--admin-port=0", speculation, scripted=True) as server:
        server.wait_until_ready()
        with server.client() as client:
            client.completions.create(model="smollm2", prompt="Hello", max_tokens=2)
        yield server


@pytest.mark.parametrize("command", ["", "engine", "fetch"])
def test_flags_are_unchanged(command: str) -> None:
    assert_unchanged(SNAPSHOTS / f"{command or 'fairlead'}_help.txt", help_of(*command.split()))


@pytest.mark.more
def test_metrics_are_unchanged(started: EngineProcess) -> None:
    families = text_string_to_metric_families(started.get("/metrics").body.decode())
    assert_unchanged(SNAPSHOTS / "engine_metrics.txt", describe_metrics(families, labels_of_samples))


@pytest.mark.more
def test_log_of_the_start_is_unchanged(started: EngineProcess) -> None:
    started.wait_for_line("POST /v1/completions")
    # The model is downloaded and converted only where that was not done before.
    lines = [line for line in started.lines if " engine_server.model_sources." not in line]
    # Models that an earlier version converted have the end of the tokenizer alone.
    lines = [re.sub("answers end at: .*", "answers end at: ENDS", line) for line in lines]
    assert_unchanged(SNAPSHOTS / "engine_log.txt", without_variables(lines))
