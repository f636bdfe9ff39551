"""The distribution of requests over replicas."""

from typing import Annotated

from engine_server.contract.policies import PolicyName
from llm_operator.api.schema import Section, about


class Routing(Section, frozen=True):
    policy: Annotated[
        PolicyName | None,
        about(
            "The policy by which the router picks a replica: prefix sends prompts that begin alike to the same one,"
            " whose cache has them; least_load, the one with the fewest requests; round_robin, one after the other;"
            " session, the same one for a session. By default the router's own, prefix unless it is configured."
        ),
    ] = None
