"""The records that are kept of requests: metrics, the access log, and traces."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_server.router.http.wire import Request
from engine_server.router.metrics import Metrics
from engine_server.router.requests.access_log import AccessLog
from engine_server.router.requests.lifecycle import Lifecycle

if TYPE_CHECKING:
    from engine_server.router.requests.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Observation:
    """The destinations of all records of requests; None where there is none."""

    metrics: Metrics
    access_log: AccessLog | None = None
    tracing: "Tracing | None" = None

    def begin(self, request: Request) -> Lifecycle:
        """Return the lifecycle of a request that is forwarded."""
        trace = None if self.tracing is None else self.tracing.begin(request)
        return Lifecycle(self.metrics, request, self.access_log, trace)

    def begin_own(self, request: Request) -> Lifecycle:
        """Return the lifecycle of a request that the router answers itself, which has no trace."""
        return Lifecycle(self.metrics, request, self.access_log)
