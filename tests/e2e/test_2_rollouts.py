"""Rollouts under load: versions that fail, and replicas that are replaced one by one."""

from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
# In seconds.
A_MINUTE = 60


def waiting_reason(pod: Any) -> str:
    """Return the reason for which the engine's container waits; empty if it does not."""
    entries = pod["status"].get("containerStatuses", [])
    return str(next((entry["state"].get("waiting", {}).get("reason", "") for entry in entries), ""))


def restarts(pod: Any) -> int:
    return sum(entry["restartCount"] for entry in pod["status"].get("containerStatuses", []))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": "registry.invalid/nothing:1"}, "ImagePullBackOff"),
        ({"args": ["--no-such-flag"]}, "CrashLoopBackOff"),
    ],
    ids=["image", "flag"],
)
def test_version_that_fails_again_and_again_stops_while_the_old_one_serves(
    cluster: Any, smollm2: str, served: Any, change: dict[str, Any], reason: str
) -> None:
    old = cluster.engines(smollm2, NAMESPACE)
    engine = cluster.get("llmd", smollm2, "-n", NAMESPACE)["spec"]["engine"]

    def has_failed_again() -> bool:
        new = [pod for pod in cluster.pods(smollm2, NAMESPACE) if pod["metadata"]["uid"] not in old]
        return any(restarts(pod) >= 2 or waiting_reason(pod) == "ImagePullBackOff" for pod in new)

    def has_stopped() -> bool:
        progressing = cluster.condition(smollm2, NAMESPACE, "Progressing")
        return (progressing["status"], progressing["reason"]) == ("False", reason)

    with served(f"a bad version ({reason}) and its revert"):
        cluster.merge(smollm2, NAMESPACE, engine=change)
        until(has_failed_again, "the new replica has failed repeatedly", 300)
        until(has_stopped, f"Progressing is False with the reason {reason}", A_MINUTE)
        cluster.show(reason, cluster.condition(smollm2, NAMESPACE, "Progressing")["message"])
        assert cluster.engines(smollm2, NAMESPACE) > old
        assert cluster.condition(smollm2, NAMESPACE, "Ready")["status"] == "True"
        cluster.merge(smollm2, NAMESPACE, engine={name: engine.get(name) for name in change})
        cluster.wait_replicas(smollm2, NAMESPACE, 2)
    assert cluster.engines(smollm2, NAMESPACE) == old


def test_rollout_in_place_fails_no_request_and_starts_no_further_replica(
    cluster: Any, smollm2: str, served: Any
) -> None:
    args = cluster.get("llmd", smollm2, "-n", NAMESPACE)["spec"]["engine"].get("args", [])
    counts: list[int] = []

    def has_rolled(old: set[str]) -> bool:
        pods = cluster.pods(smollm2, NAMESPACE)
        counts.append(sum("deletionTimestamp" not in pod["metadata"] for pod in pods))
        return not old & {pod["metadata"]["uid"] for pod in pods}

    def roll(new_args: list[str]) -> None:
        old = cluster.engines(smollm2, NAMESPACE)
        cluster.merge(smollm2, NAMESPACE, rollout={"strategy": "inPlace"}, engine={"args": new_args})
        until(lambda: has_rolled(old), "all replicas were replaced", 300)
        cluster.wait_replicas(smollm2, NAMESPACE, 2)

    with served("a rollout in place and its revert"):
        roll([*args, "--max-num-seqs=14"])
        roll(args)
    cluster.merge(smollm2, NAMESPACE, rollout=None)
    assert max(counts) == 2
