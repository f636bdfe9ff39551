"""Restarts and takeovers of the operator, against a real API server."""

import json
import urllib.request
from pathlib import Path
from typing import Any

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


def exposed(operator: Any) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics") as answer:
        return str(answer.read().decode())


def reconciles(operator: Any) -> float:
    series = 'fairlead_operator_reconciles_total{outcome="success"}'
    lines = exposed(operator).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(series))


def settled(operator: Any, quiet: int = 15) -> None:
    """Wait until no reconcile has happened for `quiet` looks in a row."""
    seen: list[float] = []

    def still() -> bool:
        seen.append(reconciles(operator))
        return len(seen) > quiet and len(set(seen[-quiet:])) == 1

    until(still)


def reconciled(operator: Any, times: int) -> None:
    """Wait until an operator is the leader and has reconciled more than `times` times."""
    until(lambda: operator.logged("this operator holds"))
    until(lambda: reconciles(operator) > times)


def writes(operator: Any) -> list[str]:
    return [verb for verb in ("create", "patch", "delete") if f'verb="{verb}"' in exposed(operator)]


def test_a_restart_writes_nothing(world: Any, manifest: Any, start_operator: Any, name: str) -> None:
    world.kubectl("create", "namespace", "restarted")
    account = world.service_account("restarted", "restarted")
    flags = ("--namespace=restarted", "--lease-namespace=restarted")
    first = start_operator(account, *flags)
    world.apply(manifest(name, namespace="restarted", resources={"cpu": "2", "memory": "4Gi"}))
    until(lambda: world.condition(name, "Ready", "restarted"))
    settled(first)
    assert first.stop() == 0

    second = start_operator(account, *flags)

    reconciled(second, 0)
    settled(second)
    assert writes(second) == []


def test_a_restart_writes_nothing_of_a_shared_cache_before_and_after_its_download(
    world: Any, manifest: Any, start_operator: Any
) -> None:
    world.kubectl("create", "namespace", "cached")
    account = world.service_account("cached", "cached")
    flags = ("--namespace=cached", "--lease-namespace=cached")
    model = {"uri": "hf://tests/restart", "cache": {"size": "1024Mi"}}
    first = start_operator(account, *flags)
    world.apply(*(manifest(name, namespace="cached", model=model) for name in ("one", "other")))

    def job() -> dict[str, Any]:
        found = json.loads(world.kubectl("get", "jobs", "-n", "cached", "-o", "json"))["items"]
        assert [len(job["metadata"]["ownerReferences"]) for job in found] == [2]
        return dict(found[0])

    cache = until(job)["metadata"]["name"]
    until(lambda: world.condition("other", "ModelCached", "cached"))
    assert first.stop() == 0

    # A download is looked at again and again, so the operator is never idle.
    second = start_operator(account, *flags)
    reconciled(second, 5)
    assert writes(second) == []

    world.set_status("job", cache, COMPLETE, "cached")
    until(
        lambda: (
            world.get("deployment", "one-engine", "cached")
            and world.get("deployment", "other-engine", "cached")
        )
    )
    settled(second)
    assert second.stop() == 0

    third = start_operator(account, *flags)

    reconciled(third, 1)
    settled(third)
    assert writes(third) == []


def test_a_profile_that_is_removed_during_a_download_is_reported_and_the_download_goes_on(
    world: Any, manifest: Any, start_operator: Any, tmp_path: Path, name: str
) -> None:
    world.kubectl("create", "namespace", "profiled")
    account = world.service_account("profiled", "profiled")
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("gpu-l4: {resources: {cpu: 1}}\ngpu-h200: {}\n")
    flags = ("--namespace=profiled", "--lease-namespace=profiled", f"--profiles-file={profiles}")
    with_profile = start_operator(account, *flags)
    model = {"uri": "hf://tests/profiled", "cache": {"size": "1Gi"}}
    world.apply(manifest(name, "profiled", model=model, profile="gpu-l4"))
    until(lambda: world.condition(name, "ModelCached", "profiled"))
    children = world.kubectl("get", "jobs,pvc,svc", "-n", "profiled", "-o", "yaml")
    assert with_profile.stop() == 0
    profiles.write_text("gpu-h200: {}\n")

    start_operator(account, *flags)

    stalled = until(lambda: world.condition(name, "Stalled", "profiled"))
    assert stalled["reason"] == "InvalidSpec"
    assert "no profile 'gpu-l4'; it has: gpu-h200" in stalled["message"]
    assert world.kubectl("get", "jobs,pvc,svc", "-n", "profiled", "-o", "yaml") == children


def test_another_operator_takes_over_from_one_that_was_killed(
    world: Any, manifest: Any, start_operator: Any, name: str
) -> None:
    world.kubectl("create", "namespace", "killed")
    account = world.service_account("killed", "killed")
    flags = ("--namespace=killed", "--lease-namespace=killed")
    first = start_operator(account, *flags)
    until(lambda: first.logged("this operator holds"))
    second = start_operator(account, *flags)
    until(lambda: second.logged("standing by"))

    first.process.kill()
    world.apply(manifest(name, namespace="killed"))

    until(lambda: world.condition(name, "Ready", "killed"))
    assert second.logged("this operator holds")
