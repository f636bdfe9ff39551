"""Room at endpoints: how many waiting requests can be released to each without being refused."""

from engine_server.router.routing.endpoint import Endpoint

# Requests that an endpoint gets at once, and again after each interval, until it has reported its room or was full.
FIRST_STEP = 16


class Window:
    """The number of requests that one endpoint may have in flight before no more are released to it.

    It follows the endpoint's reports and refusals. In between it grows slowly, since requests of other routers end
    without a notice. After a refusal it grows by one request in each interval, whatever the endpoint reports, until
    that has accepted a request.
    """

    __slots__ = ("_known", "_reported_at", "limit")

    def __init__(self, now: float) -> None:
        self.limit = 0
        self._known = False
        # Older reports do not count.
        self._reported_at = now

    def update(self, endpoint: Endpoint, now: float) -> None:
        """Adjust the limit, once in each interval."""
        if endpoint.full_until > now:
            self.close(endpoint)
        elif endpoint.refused:
            self.limit = endpoint.in_flight + 1
        elif endpoint.reported_at > self._reported_at:
            self._reported_at = endpoint.reported_at
            self.limit = endpoint.in_flight + endpoint.reported_load.room
            self._known = True
        else:
            self.limit = max(self.limit, endpoint.in_flight) + (1 if self._known else FIRST_STEP)

    def close(self, endpoint: Endpoint) -> None:
        """Leave no room: the endpoint has refused a request."""
        self.limit = endpoint.in_flight
        self._known = True

    def room(self, endpoint: Endpoint, now: float) -> int:
        """Return how many requests can be released to the endpoint now."""
        return 0 if endpoint.full_until > now else max(0, self.limit - endpoint.in_flight)
