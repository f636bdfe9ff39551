"""Numbers that no decision can be computed from stop the scaling of their own LLMDeployment alone."""

from typing import Any

from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.autoscaler import Autoscaler
from llm_operator.autoscaling.routers import Reports
from llm_operator.control.watching.scales import Scale, Scales

from engine_server.contract.api import Key
from engine_server.contract.demand import DemandReport, DeploymentDemand, EndpointLoad

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
        await autoscaler.scale_all(Reports((report,), is_complete=True, has_silent=False), now)

    assert cluster.replicas == {GOOD: 2}
