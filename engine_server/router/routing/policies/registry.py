"""The policies by the names that flags and LLMDeployments use."""

from collections.abc import Callable, Sequence

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.policies.least_load import LeastLoad
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.prefix import Prefix
from engine_server.router.routing.policies.round_robin import RoundRobin
from engine_server.router.routing.policies.session import Session

POLICIES: dict[str, Callable[[Sequence[Endpoint]], Policy]] = {
    "prefix": Prefix,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
    "session": Session,
}


def policy_name(policy: Policy) -> str:
    """Return the name of a policy's class."""
    return next(name for name, kind in POLICIES.items() if kind is type(policy))
