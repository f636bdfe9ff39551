"""The way in which a change reaches the replicas."""

from typing import Annotated, Literal

from msgspec import Meta

from engine_server.contract.cluster.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from llm_operator.api.schema import INT_OR_STRING, NOT_IN_PODS, Count, Percent, Seconds, Section, about

# The time in which a replica becomes ready: image, model and warm-up.
DEFAULT_PROGRESS_DEADLINE_SECONDS = 1800
Replicas = Annotated[Count | Percent | None, Meta(extra_json_schema=INT_OR_STRING), NOT_IN_PODS]


class Rollout(Section, frozen=True):
    strategy: Annotated[
        Literal["surge", "inPlace"],
        NOT_IN_PODS,
        about(
            "surge, the default, starts a new replica before it ends an old one; inPlace ends an old one first, and"
            " needs no spare GPU."
        ),
    ] = "surge"
    max_surge: Annotated[
        Replicas,
        about(
            "The number of new replicas, or percentage of replicas, that a rollout may start before old ones"
            " have ended; 1 by default with surge, and 0 with inPlace."
        ),
    ] = None
    max_unavailable: Annotated[
        Replicas,
        about(
            "The number of replicas, or percentage of them, that a rollout may end before new ones are ready;"
            " 0 by default with surge, and 1 with inPlace."
        ),
    ] = None
    progress_deadline_seconds: Annotated[
        Seconds,
        NOT_IN_PODS,
        about(
            "Seconds in which a new replica must become ready, 1800 by default; then the rollout is reported as failed,"
            " and the old replicas go on serving."
        ),
    ] = DEFAULT_PROGRESS_DEADLINE_SECONDS
    drain_timeout_seconds: Annotated[
        Seconds,
        about(
            "Seconds in which a stopping replica may finish its requests, 60 by default; streams that take longer are"
            " continued on another replica, or end."
        ),
    ] = DEFAULT_DRAIN_TIMEOUT_SECONDS

    @property
    def surge(self) -> int | str:
        """The replicas that may exist beyond the wanted number."""
        if self.max_surge is not None:
            return self.max_surge
        return int(self.strategy == "surge")

    @property
    def unavailable(self) -> int | str:
        """The replicas that may be missing from the wanted number."""
        if self.max_unavailable is not None:
            return self.max_unavailable
        return int(self.strategy == "inPlace")
