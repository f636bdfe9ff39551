"""The names of the policies by which the router picks a replica."""

from typing import Literal

PolicyName = Literal["prefix", "least_load", "round_robin", "session"]
DEFAULT_POLICY: PolicyName = "prefix"
