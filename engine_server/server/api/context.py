"""The context of a request to a model, which is read once from its headers and its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from engine_server.contract.wire.deadline import TimeLeft
from engine_server.contract.wire.errors import ErrorCode
from engine_server.contract.wire.router_head import RouterHead
from engine_server.requests.submission import Origin
from engine_server.server.api.models import served_model
from engine_server.server.generation.request_context import RequestContext
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.loaded_model import LoadedModel


class Asking(Protocol):
    """The fields of a request's body that it has in common with all others."""

    model: str | None
    priority: int | None
    timeout: float | None


def request_context(model: LoadedModel, body: Asking, headers: Mapping[str, str]) -> RequestContext:
    """Return the context of a request. Raises ApiError."""
    router = router_head(headers)
    served = served_model(model, body.model, router)
    origin = Origin(
        lora_request=served.lora,
        trace_headers=model.trace_headers(headers),
        prompt_adapter_request=served.prompt_adapter,
        priority=body.priority or 0,
        caller=router.caller,
    )
    return RequestContext(served, router, timeout(body.timeout, headers), origin)


def router_head(headers: Mapping[str, str]) -> RouterHead:
    """Return what a router says in a request's headers. Raises ApiError 400 for a caller that is not the router's.

    Only requests with a key still have the caller's header here.
    """
    try:
        return RouterHead.parse(headers)
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, str(error)) from None


def timeout(of_body: float | None, headers: Mapping[str, str]) -> float | None:
    """Return the shorter of the body's timeout and the header's, in seconds. Raises ApiError."""
    text = headers.get(TimeLeft.NAME)
    if text is None:
        return of_body
    try:
        seconds = TimeLeft.parse(text).seconds
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, str(error)) from None
    return seconds if of_body is None else min(of_body, seconds)
