"""Errors that the engine raises."""


class InvalidRequestError(ValueError):
    """A request that can't be served as given; no part of it was queued.

    parameter: the name of the wrong field, if there is one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class QueueFullError(RuntimeError):
    """A full queue; no part of the request was queued, and it can be retried soon."""


class ShareUsedError(RuntimeError):
    """A caller that has its whole share of the engine in use; other callers still have theirs."""


class OperationRefusedError(RuntimeError):
    """An operation on the engine, such as a profile, that its state or configuration does not allow."""


class EngineDeadError(RuntimeError):
    """The end of the engine core, after which no request can be served.

    The first line of the message is the cause; the core's last log lines may follow.
    """

    @property
    def cause(self) -> str:
        """The message without log lines, which are not for clients."""
        return str(self).partition("\n")[0]


class EngineShutDownError(EngineDeadError):
    """The end of an engine whose owner shut it down: its requests can continue on another one."""
