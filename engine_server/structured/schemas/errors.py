"""Errors of schemas."""

from engine_server.contract.base.quoting import shorten


class SchemaError(ValueError):
    """A schema that can't be used. The message is one line for the client.

    path: the path in the request, with names that the client chose. kind: the reason in a few words.
    """

    def __init__(self, path: str, message: str, kind: str = "invalid") -> None:
        super().__init__(shorten(message))
        self.path = path
        self.kind = kind
