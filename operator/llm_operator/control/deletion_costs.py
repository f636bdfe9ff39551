"""Deletion costs of pods, written before a scale-down, so that the replicas with the fewest requests are removed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import PODS
from llm_operator.observed import Manifest
from llm_operator.plan.deletion_cost import ANNOTATION, changed_costs

logger = logging.getLogger(__name__)

# Returns the current reports of the routers.
AskRouters = Callable[[], Awaitable[Sequence[DemandReport]]]


@dataclass(frozen=True, slots=True)
class DeletionCosts:
    """Writes each pod's requests as its cost. The scale-down does not depend on its success."""

    cluster: Cluster
    ask_routers: AskRouters

    async def write(self, key: Key, pods: Sequence[Manifest]) -> None:
        """Write the costs that have changed."""
        requests = requests_by_host(key, await self.ask_routers())
        changed = changed_costs(pods, requests)
        await asyncio.gather(*(self._write(key, name, cost) for name, cost in changed.items()))

    async def _write(self, key: Key, name: str, cost: str) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION: cost}}}
        try:
            await self.cluster.patch(PODS.path(key.namespace, name), patch)
        except FAILURES as error:
            logger.warning("%s: the deletion cost of pod %s is not written: %s", key, name, describe(error))


def requests_by_host(key: Key, reports: Iterable[DemandReport]) -> Counter[str]:
    """Return the requests that each engine of an LLMDeployment has, over all routers, by the engine's address."""
    requests: Counter[str] = Counter()
    for report in reports:
        for demand in report.deployments:
            if (demand.namespace, demand.name) == key:
                for address, count in demand.requests.items():
                    requests[urlsplit(address).hostname or ""] += count
    return requests
