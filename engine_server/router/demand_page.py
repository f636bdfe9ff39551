"""The page `/internal/demand`: the demand for each deployment, by which the operator scales it."""

from collections.abc import Callable, Mapping
from time import perf_counter

import msgspec

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport, DeploymentDemand, EndpointLoad
from engine_server.router.demand import Demand
from engine_server.router.routing.directory import Directory, Route


class DemandPage:
    """Renders the demand as JSON."""

    def __init__(self, demand: Demand, directory: Directory, held: Callable[[], Mapping[Key, int]]) -> None:
        self._demand = demand
        self._directory = directory
        self._held = held

    def render(self) -> bytes:
        """Return the page."""
        held = self._held()
        self._demand.keep_only({route.deployment.key for route in self._directory.routes})
        return msgspec.json.encode(
            DemandReport(tuple(self._deployment(route, held) for route in self._directory.routes))
        )

    def _deployment(self, route: Route, all_held: Mapping[Key, int]) -> DeploymentDemand:
        key, now = route.deployment.key, perf_counter()
        held = all_held.get(key, 0)
        loads = tuple(
            EndpointLoad(
                str(endpoint.address), endpoint.reported_load.kv, round(now - endpoint.reported_at, 3)
            )
            for endpoint in route.endpoints
            if endpoint.reported_at
        )
        requests, idle_seconds = self._demand.requests[key], self._demand.idle_seconds(key)
        by_engine = {
            str(endpoint.address): endpoint.in_flight for endpoint in route.endpoints if endpoint.in_flight
        }
        return DeploymentDemand(*key, requests - held, held, idle_seconds, loads, by_engine)
