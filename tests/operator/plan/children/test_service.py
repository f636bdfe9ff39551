"""The Service in front of the engines."""

from typing import Any


def test_the_service_selects_the_pods_and_targets_their_port(planned: Any, manifest: Any) -> None:
    goal = planned(manifest())
    workload = goal.child("Deployment")["spec"]
    service = goal.child("Service")["spec"]

    assert service["selector"] == workload["selector"]["matchLabels"]
    assert service["selector"].items() <= workload["template"]["metadata"]["labels"].items()
    assert service["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert {"name": "http", "containerPort": 8000, "protocol": "TCP"} in goal.engine["ports"]
