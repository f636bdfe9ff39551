"""The demand that a router reports on its internal port, and by which the operator scales deployments."""

import msgspec

DEMAND_PATH = "/internal/demand"


class EndpointLoad(msgspec.Struct, frozen=True):
    """The last report that a router has of one engine."""

    # http://HOST:PORT
    address: str
    # Share of the KV cache that is in use.
    kv: float
    # Seconds since the engine reported it.
    age: float


class DeploymentDemand(msgspec.Struct, frozen=True):
    """The requests of one router for one deployment."""

    namespace: str
    name: str
    # Requests that a replica has, or is about to get.
    in_flight: int
    # Requests that wait for a replica.
    held: int
    # Seconds since the last request ended, or since the router's start; 0 while there are requests.
    idle_seconds: float
    # Engines that have not reported are left out.
    endpoints: tuple[EndpointLoad, ...] = ()
    # Requests that each engine has of this router, by address; engines without any are left out.
    requests: dict[str, int] = {}


class DemandReport(msgspec.Struct, frozen=True):
    """The page: every deployment that the router knows."""

    deployments: tuple[DeploymentDemand, ...]
