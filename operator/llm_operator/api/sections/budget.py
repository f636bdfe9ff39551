"""The protection of replicas from voluntary disruptions, such as the drain of a node."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api.schema import INT_OR_STRING, Positive, PositivePercent, Section, about


class Budget(Section, frozen=True):
    enabled: Annotated[
        bool,
        about(
            "True, the default, creates a PodDisruptionBudget. Without one a drain of nodes may evict all replicas at"
            " once."
        ),
    ] = True
    max_unavailable: Annotated[
        Positive | PositivePercent,
        Meta(extra_json_schema=INT_OR_STRING),
        about(
            "The number of replicas, or percentage of them, that evictions may end at a time; 1 by default."
        ),
    ] = 1
