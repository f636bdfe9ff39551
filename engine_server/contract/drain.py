"""Timings of a drain, in seconds: each part must wait for at least as long as the parts behind it may take."""

# The time that in-flight requests get after SIGTERM, in engine and router, unless configured.
DEFAULT_DRAIN_TIMEOUT_SECONDS = 60
# The time for which a draining server still accepts requests, until its clients see that it is not ready, unless
# configured.
ANNOUNCE_SECONDS = 2.0
# The sleep of the preStop hook, so that routers see the pod terminating before it gets SIGTERM.
PRE_STOP_SECONDS = 3
# The time between the end of a pod's drain timeout and SIGKILL; the preStop sleep counts against it.
STOP_MARGIN_SECONDS = 15
# The time between SIGTERM and SIGKILL for the router of `fairlead up`, which waits for the engines' requests.
ROUTER_GRACE_SECONDS = 90.0


def termination_grace(drain_timeout: int) -> int:
    """Return the time between a pod's deletion and SIGKILL for an engine with this drain timeout."""
    return drain_timeout + STOP_MARGIN_SECONDS
