"""Restarts and takeovers of the operator, against a real API server."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llm_operator import metrics
from llm_operator.control import lease
from llm_operator.plan.children import cache
from operators import Operator, reconciles, settle
from waiting import until

COMPLETE = {
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T00:01:00Z",
    "succeeded": 1,
    "uncountedTerminatedPods": {},
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}
        for kind in ("SuccessCriteriaMet", "Complete")
    ],
}


def writes() -> float:
    """Return the calls of this process's operators so far that create, patch or delete something."""
    (requests,) = metrics.API_REQUESTS.collect()
    verbs = ("create", "patch", "delete")
    return sum(
        sample.value
        for sample in requests.samples
        if sample.name.endswith("_total") and sample.labels["verb"] in verbs
    )


Start = Callable[..., Operator]


@pytest.fixture
def home(world: Any, name: str) -> str:
    """A namespace that no other test has."""
    return str(world.create_namespace(f"{world.namespace}-{name}"[:60].strip("-")))


@pytest.fixture
def start(world: Any, home: str, start_operator: Any) -> Start:
    """Return a function that starts an operator of the namespace."""
    return partial(
        start_operator, world.service_account(home), f"--namespace={home}", f"--lease-namespace={home}"
    )


def test_a_restart_writes_nothing(world: Any, manifest: Any, home: str, start: Start, name: str) -> None:
    first = start()
    world.apply(manifest(name, home, resources={"cpu": "2", "memory": "4Gi"}))
    until(lambda: world.condition(name, "Ready", home))
    settle()
    assert first.stop() == 0
    written, done = writes(), reconciles()

    start()

    until(lambda: reconciles() > done)
    settle()
    assert writes() == written


@pytest.mark.more
def test_a_restart_writes_nothing_of_a_shared_cache_before_and_after_its_download(
    world: Any, manifest: Any, home: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "POLL_SECONDS", 0.2)
    model = {"uri": "hf://tests/restart", "cache": {"size": "1024Mi"}}
    first = start()
    world.apply(*(manifest(name, home, model=model) for name in ("one", "other")))

    def shared_job() -> dict[str, Any] | None:
        jobs = world.list("job", home)
        return next((job for job in jobs if len(job["metadata"]["ownerReferences"]) == 2), None)

    job = until(shared_job)["metadata"]["name"]
    assert world.names("job", home) == {job}
    # The second of two that apply the same Job has a conflict, and reports after its retry.
    for name in ("one", "other"):
        until(lambda name=name: world.condition(name, "ModelCached", home))
    assert first.stop() == 0
    written, done = writes(), reconciles()

    # A download is looked at again and again, so the operator is never idle.
    second = start()
    until(lambda: reconciles() > done + 5)
    assert writes() == written

    world.set_status("job", job, COMPLETE, home)
    until(lambda: {"one-engine", "other-engine"} <= world.names("deployment", home))
    settle()
    assert second.stop() == 0
    written, done = writes(), reconciles()

    start()

    until(lambda: reconciles() > done + 1)
    settle()
    assert writes() == written


@pytest.mark.more
def test_a_profile_that_is_removed_during_a_download_is_reported_and_the_download_goes_on(
    world: Any, manifest: Any, home: str, start: Start, tmp_path: Path, name: str
) -> None:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("gpu-l4: {resources: {cpu: 1}}\ngpu-h200: {}\n")
    with_profile = start(f"--profiles-file={profiles}")
    model = {"uri": "hf://tests/profiled", "cache": {"size": "1Gi"}}
    world.apply(manifest(name, home, model=model, profile="gpu-l4"))
    until(lambda: world.condition(name, "ModelCached", home))

    def children() -> list[dict[str, Any]]:
        return [item for kind in ("job", "pvc", "service") for item in world.list(kind, home)]

    before = children()
    assert {item["metadata"]["name"] for item in before} > {f"{name}-engine"}
    assert with_profile.stop() == 0
    profiles.write_text("gpu-h200: {}\n")

    start(f"--profiles-file={profiles}")

    stalled = until(lambda: world.condition(name, "Stalled", home))
    assert stalled["reason"] == "InvalidSpec"
    assert "no profile 'gpu-l4'; it has: gpu-h200" in stalled["message"]
    assert children() == before


@pytest.mark.more
def test_another_operator_takes_over_from_one_that_was_killed(
    world: Any,
    manifest: Any,
    home: str,
    start: Start,
    start_process: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = start_process(world.service_account(home), f"--namespace={home}", f"--lease-namespace={home}")
    until(lambda: first.logged("this operator holds"))
    second = start()
    until(lambda: second.logged("standing by"))

    first.kill()
    world.apply(manifest(name, home))
    monkeypatch.setattr(lease, "DURATION_SECONDS", 1)

    until(lambda: world.condition(name, "Ready", home))
    assert second.logged("this operator holds")
