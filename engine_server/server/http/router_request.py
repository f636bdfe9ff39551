"""The router's headers of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from engine_server.contract import headers

if TYPE_CHECKING:
    from collections.abc import Mapping


class RouterRequest(NamedTuple):
    """What the router asks of an engine, beside the client's request; requests of other clients have the defaults."""

    # NAMESPACE/NAME of the deployment that is meant; the body may then name any model.
    deployment: str | None = None
    adapter: str | None = None
    # Report the tokens of a stream, so that it can be continued elsewhere.
    reports_tokens: bool = False
    # The body has the state of a stream that another engine began.
    resumes: bool = False

    @classmethod
    def of(cls, received: Mapping[str, str]) -> Self:
        return cls(
            received.get(headers.DEPLOYMENT),
            received.get(headers.ADAPTER),
            received.get(headers.REPORT_TOKENS) == "1",
            received.get(headers.RESUME) == "1",
        )
