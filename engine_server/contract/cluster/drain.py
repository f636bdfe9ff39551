"""Timings of a drain, in seconds: each part must wait for at least as long as the parts behind it may take."""

# The time that in-flight requests get after SIGTERM, in engine and router, unless configured.
DEFAULT_DRAIN_TIMEOUT_SECONDS = 60
# The time for which a draining server still accepts requests, until its clients see that it is not ready, unless
# configured.
ANNOUNCE_SECONDS = 2.0
# The sleep of the preStop hook, so that routers see the pod terminating before it gets SIGTERM.
PRE_STOP_SECONDS = 3
# The time between the end of a drain timeout and SIGKILL; a pod's preStop sleep counts against it.
STOP_MARGIN_SECONDS = 15


def termination_grace(drain_timeout: int) -> int:
    """Return the time between the begin of a termination and SIGKILL for an engine or a local router."""
    return drain_timeout + STOP_MARGIN_SECONDS
