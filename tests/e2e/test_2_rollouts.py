"""Rollouts under load: versions that fail, and replicas that are replaced one by one."""

from typing import Any

import pytest
from cluster_manifests import MISSING_IMAGE
from waiting import until

pytestmark = pytest.mark.e2e

SYSTEM, NAMESPACE = "fairlead-system", "team-a"
OPERATOR = ("-n", SYSTEM, "-l", "app.kubernetes.io/component=operator")


def waiting_reason(pod: Any) -> str:
    """Return the reason for which the engine's container waits; empty if it does not."""
    entries = pod["status"].get("containerStatuses", [])
    return str(next((entry["state"].get("waiting", {}).get("reason", "") for entry in entries), ""))


def restarts(pod: Any) -> int:
    return sum(entry["restartCount"] for entry in pod["status"].get("containerStatuses", []))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": MISSING_IMAGE}, "ImagePullBackOff"),
        ({"args": ["--no-such-flag"]}, "CrashLoopBackOff"),
    ],
    ids=["image", "flag"],
)
def test_version_that_fails_again_and_again_stops_while_the_old_one_serves(
    cluster: Any, smollm2: str, served: Any, change: dict[str, Any], reason: str
) -> None:
    old = cluster.engines(smollm2, NAMESPACE)
    engine = cluster.llmd(smollm2, NAMESPACE)["spec"]["engine"]

    def has_failed_again() -> bool:
        new = [pod for pod in cluster.pods(smollm2, NAMESPACE) if pod["metadata"]["uid"] not in old]
        return any(restarts(pod) >= 2 or waiting_reason(pod) == "ImagePullBackOff" for pod in new)

    def has_stopped() -> bool:
        progressing = cluster.condition(smollm2, NAMESPACE, "Progressing")
        return (progressing.get("status"), progressing.get("reason")) == ("False", reason)

    with served(f"a bad version ({reason}) and its revert"):
        cluster.merge(smollm2, NAMESPACE, engine=change)
        until(has_failed_again, "the new replica has failed repeatedly", 300)
        until(has_stopped, f"Progressing is False with the reason {reason}")
        cluster.show(reason, cluster.condition(smollm2, NAMESPACE, "Progressing")["message"])
        assert cluster.engines(smollm2, NAMESPACE) > old
        assert cluster.condition(smollm2, NAMESPACE, "Ready")["status"] == "True"
        cluster.merge(smollm2, NAMESPACE, engine={name: engine.get(name) for name in change})
        cluster.wait_replicas(smollm2, NAMESPACE, 2)
    assert cluster.engines(smollm2, NAMESPACE) == old


def flags(pod: Any) -> set[str]:
    return set(pod["spec"]["containers"][0]["args"])


def template_hashes(pods: list[Any]) -> set[str]:
    return {pod["metadata"]["labels"]["pod-template-hash"] for pod in pods}


def test_edit_in_place_starts_no_further_replica_and_its_revert_outlives_the_operator(
    cluster: Any, smollm2: str, served: Any
) -> None:
    former = template_hashes(cluster.pods(smollm2, NAMESPACE))
    engine = cluster.llmd(smollm2, NAMESPACE)["spec"]["engine"]
    edit = {"maxModelLen": 1024, "args": ["--max-num-seqs=14"]}
    new_flags = {"--max-model-len=1024", "--max-num-seqs=14"}
    counts: list[int] = []

    def has_new_flags() -> bool:
        pods = cluster.pods(smollm2, NAMESPACE)
        counts.append(sum("deletionTimestamp" not in pod["metadata"] for pod in pods))
        return all(new_flags <= flags(pod) for pod in pods)

    assert not has_new_flags()
    with served("an edit in place"):
        cluster.merge(smollm2, NAMESPACE, rollout={"strategy": "inPlace"}, engine=edit)
        until(has_new_flags, "every pod has the new flags", 300)
        cluster.wait_replicas(smollm2, NAMESPACE, 2)
    assert max(counts) == 2

    def hashes() -> set[str]:
        return template_hashes(cluster.pods(smollm2, NAMESPACE))

    with served("its revert, and the operator killed in the middle"):
        cluster.merge(smollm2, NAMESPACE, rollout=None, engine={name: engine.get(name) for name in edit})
        until(lambda: former & hashes(), "a pod of the former template")
        cluster.kubectl("delete", "pod", *OPERATOR, "--grace-period=0", "--force")
        until(lambda: hashes() == former, "the pods have the former template", 300)
        cluster.wait_replicas(smollm2, NAMESPACE, 2)
    cluster.wait_ready(smollm2, NAMESPACE)
