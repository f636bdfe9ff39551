"""The policies by which the router picks a replica: their names, and what each does with a request."""

from typing import Literal

PolicyName = Literal["prefix", "least_load", "round_robin", "session"]
DEFAULT_POLICY: PolicyName = "prefix"
SUMMARIES: dict[PolicyName, str] = {
    "prefix": "sends prompts that begin alike to the same one, whose cache has them",
    "least_load": "takes the one with the fewest requests",
    "round_robin": "takes one after the other",
    "session": "takes the same one for a session",
}
