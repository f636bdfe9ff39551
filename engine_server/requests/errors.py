"""What the engine raises."""


class InvalidRequestError(ValueError):
    """A request that can't be served as given; nothing of it was queued.

    `parameter` names the field that is wrong, where there is one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class QueueFullError(RuntimeError):
    """As many requests wait as may; nothing of this one was queued, and it can be tried again soon."""


class EngineDeadError(RuntimeError):
    """The engine core has ended; the message says why. No request can be served any more."""
