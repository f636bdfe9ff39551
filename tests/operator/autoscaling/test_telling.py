"""How decisions are told: Events of changes, and what the status says."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client import ApiException
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.api.status import Scaling
from llm_operator.autoscaling.autoscaler import Autoscaler
from llm_operator.autoscaling.routers import Reports
from llm_operator.control.scaling_reports import ScalingReports
from llm_operator.control.watching.scales import Scale, Scales
from waiting import until_async

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport, DeploymentDemand

SLOW, OTHER = Key("default", "slow"), Key("default", "other")
OPERATOR = "an-operator"
WINDOWS = {"stable_window_seconds": 1, "panic_window_seconds": 1, "scale_down_delay_seconds": 30}
AUTOSCALING = Autoscaling(min=1, max=9, target_in_flight=1, idle_seconds=1, **WINDOWS)


class Api:
    """An API server that scales, and creates Events; writes of SLOW end once they may."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.may_end = asyncio.Event()
        self.begun: list[Key] = []
        self.failure: Exception | None = None
        self.events: list[dict[str, Any]] = []

    async def scale(self, key: Key, replicas: int, version: str) -> None:
        self.begun.append(key)
        if key == SLOW:
            await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        self.scales.by_key[key] = self.scales.by_key[key]._replace(
            replicas=replicas, resource_version=version + "1"
        )

    async def call(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append(body)
        return body

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append(self.events[0] | body)
        return body


def scaler(*keys: Key, replicas: int = 1) -> tuple[Autoscaler, Api, list[Key]]:
    """Return an autoscaler of these LLMDeployments, its API, and the keys that it wakes."""
    scale = Scale(AUTOSCALING, replicas, replicas, resource_version="1", uid="u", operator=OPERATOR)
    scales = Scales(dict.fromkeys(keys, scale))
    api, woken = Api(scales), []
    cluster: Any = api
    told = ScalingReports(woken.append)
    return Autoscaler(cluster, OPERATOR, scales, None, told), api, woken  # type: ignore[arg-type]


def reports(requests: int, *keys: Key) -> Reports:
    return Reports(
        (DemandReport(tuple(DeploymentDemand(*key, requests, 0, 0.0) for key in keys)),), is_complete=True
    )


async def test_a_write_that_hangs_delays_no_other_decision_and_is_not_repeated_meanwhile() -> None:
    autoscaler, api, _ = scaler(SLOW, OTHER)

    for now in range(3):
        await autoscaler.scale_all(reports(2 + now, SLOW, OTHER), 0.1 * now)

    assert api.begun.count(SLOW) == 1
    assert api.scales.by_key[SLOW].replicas == 1
    assert api.scales.by_key[OTHER].replicas > 2
    api.may_end.set()
    await until_async(lambda: api.scales.by_key[SLOW].replicas > 1)
    await autoscaler.stop()


async def test_a_write_that_hangs_resets_no_window() -> None:
    autoscaler, api, _ = scaler(SLOW, replicas=3)
    for now in range(20):
        await autoscaler.scale_all(reports(5 if now == 0 else 1, SLOW), float(now))
    known_since = autoscaler.tracks[SLOW].history.known_since
    api.failure = ApiException(status=500, reason="no")
    api.may_end.set()
    await until_async(lambda: autoscaler.tracks[SLOW].writing is None)

    assert known_since == autoscaler.tracks[SLOW].history.known_since == 0.0


async def test_writes_end_with_the_autoscaler() -> None:
    autoscaler, api, _ = scaler(SLOW)
    await autoscaler.scale_all(reports(3, SLOW), 0.0)

    await autoscaler.stop()
    api.may_end.set()
    await asyncio.sleep(0)

    assert api.begun == [SLOW] and api.scales.by_key[SLOW].replicas == 1


async def test_each_change_of_the_number_is_an_event_of_the_llmdeployment() -> None:
    autoscaler, api, _ = scaler(OTHER)
    await autoscaler.scale_all(reports(3, OTHER), 0.0)
    await autoscaler.scale_all(reports(3, OTHER), 1.0)
    await until_async(lambda: len(api.events) == 1)
    api.scales.by_key[OTHER] = api.scales.by_key[OTHER]._replace(replicas=5, resource_version="9")
    await autoscaler.scale_all(reports(5, OTHER), 2.0)
    await until_async(lambda: len(api.events) == 2)
    await autoscaler.stop()

    ours, foreign = api.events
    assert (ours["type"], ours["reason"], ours["count"], foreign["count"]) == ("Normal", "ScaledUp", 1, 2)
    assert ours["involvedObject"] == {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "name": "other",
        "namespace": "default",
        "uid": "u",
    }
    assert ours["message"].startswith("from 1 to 3 replicas (Requests)")
    assert foreign["message"] == "from 3 to 5 replicas, by another client of the scale subresource"


async def test_the_status_is_told_a_new_number_at_once_and_a_new_reason_after_a_while() -> None:
    woken: list[Key] = []
    told = ScalingReports(woken.append)

    for now, wanted, reason in [
        (0.0, 1, "Steady"),
        (1.0, 1, "WindowNotPassed"),
        (2.0, 1, "Steady"),
        (3.0, 4, "Panic"),
        (4.0, 4, "Steady"),
        (12.9, 4, "Steady"),
    ]:
        told.put(OTHER, Scaling(wanted, reason), now)
    assert (told.get(OTHER), len(woken)) == (Scaling(4, "Panic"), 2)
    told.put(OTHER, Scaling(4, "Steady"), 13.0)
    assert (told.get(OTHER), len(woken)) == (Scaling(4, "Steady"), 3)
    told.put(OTHER, Scaling(4, "Steady"), 99.0)
    assert len(woken) == 3

    told.remove(OTHER)
    assert told.get(OTHER) is None


@pytest.mark.parametrize("status", [403, 500])
async def test_an_event_that_is_refused_stops_nothing(status: int, monkeypatch: Any) -> None:
    autoscaler, api, _ = scaler(OTHER)

    async def refuse(*_: object) -> None:
        raise ApiException(status=status, reason="no")

    monkeypatch.setattr(api, "call", refuse)
    for now in range(3):
        await autoscaler.scale_all(reports(2 + now, OTHER), 0.1 * now)
    await until_async(lambda: not autoscaler.tasks)

    assert api.scales.by_key[OTHER].replicas > 2
