"""The bounds and targets of automatic scaling."""

from typing import Annotated

from llm_operator.api.schema import Count, Positive, Seconds, Section, about


class Autoscaling(Section, frozen=True):
    max: Annotated[Positive, about("The largest number of replicas.")]
    min: Annotated[
        Count,
        about(
            "The smallest number of replicas, 0 by default. 0 allows scaling to zero after idleSeconds; the next"
            " request starts a replica, and waits for it."
        ),
    ] = 0
    target_in_flight: Annotated[
        Positive,
        about(
            "Requests in flight for each replica, 32 by default. Requests that wait for a replica count too; use of"
            " the KV cache above 80 % adds replicas whatever the requests."
        ),
    ] = 32
    stable_window_seconds: Annotated[
        Seconds, about("The time over which demand is averaged, 60 by default.")
    ] = 60
    panic_window_seconds: Annotated[
        Seconds,
        about(
            "A shorter time over which demand is averaged, 6 by default: if it calls for at least twice the ready"
            " replicas, they are started without waiting for the stable window."
        ),
    ] = 6
    scale_down_delay_seconds: Annotated[
        Seconds,
        about("Replicas are removed once demand has not needed them for this time, 300 by default."),
    ] = 300
    idle_seconds: Annotated[
        Seconds,
        about(
            "With min 0, the time without any request after which the last replica is removed, 300 by default. It"
            " is counted from the first time a replica is ready."
        ),
    ] = 300
