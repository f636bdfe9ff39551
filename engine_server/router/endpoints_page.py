"""The page `/internal/endpoints`: the deployments and endpoints as this router sees them."""

from time import perf_counter

import msgspec
from msgspec.structs import asdict

from engine_server.contract.wire.engine_report import ReportedLoad
from engine_server.router.routing.directory import Directory, Route
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.policies.registry import policy_name


class EndpointState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One endpoint, as it is listed."""

    address: str
    # `live`, `full`, `starting` (never ready so far) or `ejected`.
    state: str
    in_flight: int
    # The reason of the last ejection.
    ejected_for: str = ""
    # Seconds since the last ejection.
    seconds_since_ejection: float | None = None
    # Seconds until a full endpoint is sent requests again.
    seconds_until_room: float | None = None
    failures_in_row: int = 0
    # As the engine reported them.
    engine_model: str = ""
    engine_load: dict[str, float] | None = None
    engine_streams: str = ""
    # The name of the DNS by which the address was found.
    name: str = ""


class AdapterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One adapter of a deployment, as it is listed."""

    name: str
    # Addresses of the endpoints that have it.
    endpoints: list[str]
    # Why none has it, as the source reports it.
    error: str = ""


class DeploymentState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One deployment, as it is listed."""

    namespace: str
    name: str
    # The names in requests that mean this deployment, besides those with its namespace.
    models: list[str]
    policy: str
    endpoints: list[EndpointState]
    adapters: list[AdapterState] = []


class EndpointsPage:
    """Renders the deployments as JSON."""

    def __init__(self, directory: Directory, health: Health) -> None:
        self._directory = directory
        self._health = health

    def render(self) -> bytes:
        """Return the page."""
        deployments = [
            self._deployment(route)
            for route in sorted(self._directory.routes, key=lambda route: route.deployment.key)
        ]
        return msgspec.json.encode({"deployments": deployments})

    def _deployment(self, route: Route) -> DeploymentState:
        namespace, name = route.deployment.key
        models = sorted(self._directory.names(route))
        endpoints = [self._endpoint(endpoint) for endpoint in route.endpoints]
        adapters = [adapter_state(adapter) for adapter in route.adapters.values()]
        return DeploymentState(namespace, name, models, policy_name(route.policy), endpoints, adapters)

    def _endpoint(self, endpoint: Endpoint) -> EndpointState:
        now = perf_counter()
        was_ejected = endpoint.ejected_at > 0.0
        is_full = endpoint.full_until > now
        reported = endpoint.reported_load
        load = asdict(reported) if reported != ReportedLoad() else None
        return EndpointState(
            str(endpoint.address),
            self._state(endpoint, is_full=is_full),
            endpoint.in_flight,
            endpoint.ejected_for,
            round(now - endpoint.ejected_at, 3) if was_ejected else None,
            round(endpoint.full_until - now, 3) if is_full else None,
            endpoint.failures_in_row,
            endpoint.fingerprints.get("", b"").decode("latin-1"),
            load,
            endpoint.stream_settings.decode(),
            endpoint.address.name if isinstance(endpoint.address, Address) else "",
        )

    def _state(self, endpoint: Endpoint, *, is_full: bool) -> str:
        if self._health.is_live(endpoint):
            return "full" if is_full else "live"
        return "ejected" if endpoint.ejected_for else "starting"


def adapter_state(route: Route) -> AdapterState:
    """Return the state of an adapter."""
    error = "" if route.adapter is None else route.adapter.error
    return AdapterState(route.target.adapter, [str(one.address) for one in route.endpoints], error)
