"""Verdicts on endpoints: what a failed attempt says of the engine at which it was made."""

from enum import Enum

import msgspec

from engine_server.router.routing.health import Cause


class Kind(Enum):
    """An action on an endpoint."""

    # Eject it: that it takes no requests is certain.
    EJECT = "eject"
    # Eject it, unless too few endpoints would be left.
    SUSPECT = "suspect"
    # Count a failure that may be the request's own; a burst of them is suspicious.
    FAILED = "failed"
    # Give it no requests until its deployment lists it anew.
    RETIRE = "retire"
    # Give it no requests for a time, or until one of its own has ended.
    FULL = "full"
    # Prefer others for the adapter that it lacks.
    LACKING = "lacking"


class Verdict(msgspec.Struct, frozen=True):
    """One verdict on one endpoint. `Selector.apply` acts on it."""

    kind: Kind
    # For the log. A full endpoint, or one that lacks an adapter, is not logged.
    reason: str = ""
    # Of an ejection.
    cause: Cause = Cause.FAILING
    # Time in seconds for which the endpoint is full.
    seconds: float = 0.0
