"""Numbers that no decision can be computed from stop the scaling of their own LLMDeployment alone."""

from typing import Any

import pytest
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.autoscaler import Autoscaler
from llm_operator.autoscaling.routers import Reports
from llm_operator.control.watching.scales import Scale, Scales

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport, DeploymentDemand, EndpointLoad

BAD, GOOD = Key("default", "bad"), Key("default", "good")
OPERATOR = "an-operator"


class Written:
    """A cluster that records what is scaled."""

    def __init__(self) -> None:
        self.replicas: dict[Key, int] = {}

    async def scale(self, key: Key, replicas: int, _version: str) -> None:
        self.replicas[key] = replicas


def demand(key: Key, kv: float) -> DeploymentDemand:
    return DeploymentDemand(*key, 50, 0, 0.0, (EndpointLoad("http://10.0.0.1:8000", kv, 0.0),))


IDLE = DeploymentDemand(*GOOD, 0, 0, 900.0)


async def replicas_after(reports: Reports, minimum: int, replicas: int) -> dict[Key, int]:
    """Return the replicas of GOOD after these reports in ten seconds."""
    delays = {"stable_window_seconds": 1, "panic_window_seconds": 1, "scale_down_delay_seconds": 1}
    autoscaling = Autoscaling(min=minimum, max=9, idle_seconds=1, **delays)
    scales = Scales()
    scales.by_key[GOOD] = Scale(
        autoscaling, replicas=replicas, ready_replicas=replicas, resource_version="1", operator=OPERATOR
    )
    cluster: Any = Written()
    cluster.replicas[GOOD] = replicas
    autoscaler = Autoscaler(cluster, OPERATOR, scales, routers=None)  # type: ignore[arg-type]
    for now in range(10):
        await autoscaler.scale_all(reports, float(now))
    return cluster.replicas


async def test_others_are_scaled_when_one_decision_fails() -> None:
    scales = Scales()
    for key in (BAD, GOOD):
        scales.by_key[key] = Scale(
            Autoscaling(max=3), replicas=1, ready_replicas=1, resource_version="1", operator=OPERATOR
        )
    cluster: Any = Written()
    autoscaler = Autoscaler(cluster, OPERATOR, scales, routers=None)  # type: ignore[arg-type]
    report = DemandReport((demand(BAD, 1.7e308), demand(GOOD, 0.5)))

    for now in (1.0, 2.0):
        await autoscaler.scale_all(Reports((report,), is_complete=True), now)

    assert cluster.replicas == {GOOD: 2}


@pytest.mark.parametrize(
    ("minimum", "silent", "expected"),
    [
        pytest.param(1, DemandReport(()), 1, id="unknown to the silent router"),
        pytest.param(1, DemandReport((demand(GOOD, 0.0),)), 2, id="with demand at the silent router"),
        pytest.param(0, DemandReport(()), 1, id="not to zero"),
    ],
)
async def test_a_silent_router_does_not_stop_the_scaling_of_a_deployment_that_it_did_not_know(
    minimum: int, silent: DemandReport, expected: int
) -> None:
    idle = DemandReport((IDLE,))

    scaled = await replicas_after(Reports((idle,), is_complete=True, silent=(silent,)), minimum, replicas=3)

    assert scaled == {GOOD: expected}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param(Reports((), True, silent=(DemandReport((demand(BAD, 0.0),)),)), 6, id="unknown to all"),
        pytest.param(
            Reports((), True, silent=(DemandReport((IDLE,)), DemandReport(()))),
            6,
            id="unknown to one, none answers",
        ),
        pytest.param(Reports((), True, silent=(DemandReport((IDLE,)),)), 1, id="known to all"),
        pytest.param(
            Reports((DemandReport((IDLE,)),), True, silent=(DemandReport((), num_invalid=1),)),
            6,
            id="perhaps among invalid entries",
        ),
        pytest.param(
            Reports((DemandReport((IDLE,)),), True, silent=(DemandReport((IDLE,), num_invalid=1),)),
            1,
            id="others are invalid",
        ),
    ],
)
async def test_a_deployment_scales_down_only_where_a_router_knows_it(reports: Reports, expected: int) -> None:
    assert await replicas_after(reports, minimum=1, replicas=6) == {GOOD: expected}


async def test_an_object_that_takes_the_name_of_another_is_not_idle_before_it_was_ready() -> None:
    autoscaling = Autoscaling(min=0, max=9, idle_seconds=5, stable_window_seconds=1, panic_window_seconds=1)
    former = Scale(
        autoscaling, replicas=1, ready_replicas=1, resource_version="1", uid="former", operator=OPERATOR
    )
    scales, cluster = Scales({GOOD: former}), Written()
    autoscaler = Autoscaler(cluster, OPERATOR, scales, routers=None)  # type: ignore[arg-type]
    reports = Reports((DemandReport((IDLE,)),), is_complete=True)

    await autoscaler.scale_all(reports, 0.0)
    scales.by_key[GOOD] = former._replace(ready_replicas=0, resource_version="2", uid="later")
    for now in range(1, 10):
        await autoscaler.scale_all(reports, float(now))

    assert cluster.replicas == {}
