"""The autoscaler against a real API server, with real routers in front of an engine that a test controls."""

import re
from typing import Any

import pytest
from waiting import until

# In seconds: short, so that a test waits for little.
WINDOWS = {
    "targetInFlight": 2,
    "stableWindowSeconds": 1,
    "panicWindowSeconds": 1,
    "scaleDownDelaySeconds": 1,
    "idleSeconds": 1,
}


def reason(scaler: Any, name: str) -> str:
    """Return the reason of the last decision, empty before the first."""
    found = re.search(
        rf'^fairlead_operator_scaling_reason{{model="\S+",name="{name}",namespace="\S+",reason="(\w+)"}} 1',
        scaler.metrics(),
        re.MULTILINE,
    )
    return found[1] if found else ""


def told(scaling: Any, name: str) -> dict[str, Any]:
    """Return the decision in the status, empty without one."""
    return dict(scaling.world.get("llmd", name).get("status", {}).get("autoscaling", {}))


def events(scaling: Any, name: str) -> dict[str, str]:
    """Return the messages of an LLMDeployment's Events by their reasons."""
    found = scaling.world.list("event")
    return {each["reason"]: each["message"] for each in found if each["involvedObject"]["name"] == name}


def test_a_request_starts_a_deployment_from_zero_and_idle_time_returns_it_there(
    scaling: Any, requests: Any, scaler: Any, manifest: Any
) -> None:
    scaling.engine.gate.set()

    # A deployment for each router: one that was ready a moment ago may still get a request of a router.
    for number, router in enumerate(scaling.routers):
        name = f"sleeper-{number}"
        scaling.apply(manifest, name, 0, min=0, max=3, **WINDOWS)
        until(lambda name=name: reason(scaler, name) == "AtZero")
        requests.send(router, name)
        until(lambda name=name: scaling.replicas(name) == 1, "the router wakes it")
        scaling.make_ready(name, 1)
        assert set(requests.join()) == {200}
        until(lambda name=name: scaling.replicas(name) == 0, "the operator returns it to zero")
        until(lambda name=name: scaler.logged(f"/{name}: scaled from 1 to 0 (Idle)"))


@pytest.mark.more
def test_a_deployment_that_never_became_ready_is_not_idle(scaling: Any, scaler: Any, manifest: Any) -> None:
    scaling.apply(manifest, "starting", 1, min=0, max=3, **WINDOWS)
    scaling.apply(manifest, "started", 1, min=0, max=3, **WINDOWS)
    scaling.make_ready("started", 1)
    until(lambda: scaling.replicas("started") == 0)
    assert scaling.replicas("starting") == 1 and reason(scaler, "starting") == "Steady"


def test_requests_of_all_routers_start_replicas_and_their_end_removes_them(
    scaling: Any, requests: Any, scaler: Any, manifest: Any
) -> None:
    scaling.apply(manifest, "elastic", 1, min=1, max=4, **WINDOWS)
    scaling.make_ready("elastic", 1)
    # Of six requests, each replica has two; each router alone needs two replicas.
    for router in scaling.routers:
        requests.send(router, "elastic", 3)
    until(lambda: scaling.replicas("elastic") == 3)
    until(lambda: told(scaling, "elastic").get("wanted") == 3)
    until(lambda: "ScaledUp" in events(scaling, "elastic"))
    scaling.engine.gate.set()
    assert requests.join() == [200] * 6
    until(lambda: scaling.replicas("elastic") == 1)
    until(lambda: told(scaling, "elastic") == {"wanted": 1, "reason": "LessDemand"})
    until(lambda: "(LessDemand)" in events(scaling, "elastic").get("ScaledDown", ""))
    until(lambda: scaler.logged("to 1 (LessDemand)"))
    assert "Traceback" not in scaler.log


def test_nothing_is_scaled_down_while_a_router_does_not_answer(
    scaling: Any, scaler: Any, manifest: Any
) -> None:
    scaling.apply(manifest, "doubtful", 2, min=1, max=4, **WINDOWS)
    paused = scaling.routers[1]
    silence = f":{paused.metrics_port}: nothing is scaled down"
    until(lambda: scaler.metric("fairlead_operator_unknown_routers") == 0)
    before = scaler.log.count(silence)
    paused.pause()
    try:
        until(lambda: scaler.logged(silence, before + 1))
        scaling.scale("doubtful", 3)
        until(lambda: reason(scaler, "doubtful") == "UnknownRouter")
        assert scaling.replicas("doubtful") == 3
        # The bounds hold all the same.
        scaling.scale("doubtful", 9)
        until(lambda: scaling.replicas("doubtful") == 4)
    finally:
        paused.resume()
    until(lambda: scaling.replicas("doubtful") == 1)
    assert not scaler.logged("/doubtful: scaled from 3")


def test_a_deployment_without_autoscaling_is_left_to_others(scaling: Any, scaler: Any, manifest: Any) -> None:
    scaling.apply(manifest, "owned", 3, min=1, max=4, **WINDOWS)
    until(lambda: reason(scaler, "owned"))
    until(lambda: told(scaling, "owned"))
    scaling.world.patch("llmd", "owned", {"spec": {"autoscaling": None}})
    until(lambda: not reason(scaler, "owned"))
    until(lambda: not told(scaling, "owned"))
    scaling.scale("owned", 5)
    until(lambda: scaling.deployed_replicas("owned") == 5)
    assert scaling.replicas("owned") == 5
