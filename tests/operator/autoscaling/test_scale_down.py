"""The choice of the replicas that a scale-down removes, with real routers."""

from typing import Any

from waiting import until

from engine_server.contract.cluster.labels import selector


def requests_of(router: Any, name: str) -> dict[str, int]:
    """Return the requests of a router for a deployment, by the engines' addresses."""
    return dict(router.demand()[name].get("requests", {}))


def test_a_scale_down_writes_the_requests_of_all_routers_as_the_cost_of_a_pod(
    scaling: Any, requests: Any, scaler: Any, manifest: Any
) -> None:
    scaling.apply(manifest, "shrinking", 3, min=1, max=3)
    scaling.make_ready("shrinking", 3)
    for router, count in zip(scaling.routers, (2, 1), strict=True):
        requests.send(router, "shrinking", count)
        until(lambda router=router, count=count: sum(requests_of(router, "shrinking").values()) == count)
    (address,) = requests_of(scaling.routers[0], "shrinking")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "busy",
            "labels": selector("shrinking"),
            "ownerReferences": scaling.world.pod_owners("shrinking"),
        },
        "spec": {"containers": [{"name": "engine", "image": "x"}]},
    }
    scaling.world.apply(pod)
    host = address.removeprefix("http://").rpartition(":")[0]
    container = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    status = {"podIP": host, "podIPs": [{"ip": host}], "containerStatuses": [container | waiting]}
    scaling.world.set_status("pod", "busy", status)
    # The operator has seen the pod's address once it reports the pod's problem.
    until(lambda: scaling.world.reason("shrinking", "Degraded") == "ImagePullBackOff")

    scaling.scale("shrinking", 2)

    until(lambda: scaling.deployed_replicas("shrinking") == 2)
    annotations = scaling.world.get("pod", "busy")["metadata"]["annotations"]
    assert annotations["controller.kubernetes.io/pod-deletion-cost"] == "3"
