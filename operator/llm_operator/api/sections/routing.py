"""The distribution of requests over replicas."""

from typing import Annotated

from engine_server.contract.cluster.policies import DEFAULT_POLICY, SUMMARIES, PolicyName
from llm_operator.api.schema import Section, about


class Routing(Section, frozen=True):
    policy: Annotated[
        PolicyName | None,
        about(
            "The policy by which the router picks a replica: "
            + "; ".join(f"{name} {summary}" for name, summary in SUMMARIES.items())
            + f". By default the router's own, {DEFAULT_POLICY} unless it is configured."
        ),
    ] = None
