"""Errors that the engine raises."""


class InvalidRequestError(ValueError):
    """A request that can't be served as given; nothing of it was queued.

    parameter: the name of the wrong field, if there is one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class QueueFullError(RuntimeError):
    """The queue is full; nothing of this request was queued, and it can be retried soon."""


class EngineDeadError(RuntimeError):
    """The engine core has ended; the message has the cause. No request can be served any more."""
