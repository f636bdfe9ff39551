"""The policies by the names that flags and LLMDeployments use."""

from collections.abc import Callable

from engine_server.router.routing.policies.least_load import LeastLoad
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.round_robin import RoundRobin

POLICIES: dict[str, Callable[[], Policy]] = {"least_load": LeastLoad, "round_robin": RoundRobin}
DEFAULT_POLICY = "least_load"
