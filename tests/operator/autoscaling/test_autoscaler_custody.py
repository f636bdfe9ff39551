"""The autoscaler and the LLMDeployments of another operator."""

from typing import Any

import pytest
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.autoscaler import Autoscaler
from llm_operator.autoscaling.routers import Reports
from llm_operator.control.watching.scales import Scale, Scales

from engine_server.contract.cluster.api import Key

OURS, THEIRS, NEW = Key("default", "ours"), Key("default", "theirs"), Key("default", "new")


class RecordingCluster:
    """Stands for the API server: it records what would be written."""

    def __init__(self) -> None:
        self.scaled: list[Key] = []

    async def scale(self, key: Key, replicas: int, resource_version: str) -> None:
        self.scaled.append(key)


@pytest.mark.asyncio
async def test_scales_only_what_this_operator_manages() -> None:
    below_minimum = Autoscaling(min=2, max=3)
    scales = Scales(
        {
            key: Scale(below_minimum, replicas=1, ready_replicas=1, resource_version="1", operator=operator)
            for key, operator in ((OURS, "home/lease"), (THEIRS, "other/lease"), (NEW, ""))
        }
    )
    cluster: Any = RecordingCluster()
    no_routers: Any = None
    autoscaler = Autoscaler(cluster, "home/lease", scales, no_routers)

    await autoscaler.scale_all(Reports(current=(), is_complete=True), now=0.0)

    assert cluster.scaled == [OURS]
