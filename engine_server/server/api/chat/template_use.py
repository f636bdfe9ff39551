"""The checks of how a request wants its conversation rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.settings import ApiSettings


def check_template(template: str | None, settings: ApiSettings) -> None:
    """Raise ApiError 400 for a request's own template where the server doesn't trust those of requests."""
    if template is not None and not settings.trust_request_chat_template:
        message = "chat_template needs a server that was started with --trust-request-chat-template"
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param="chat_template")


def check_end(continued: bool | None, opens_answer: bool | None) -> None:
    """Raise ApiError 400 for a conversation whose last message is continued, and followed by an answer's beginning."""
    if continued and opens_answer:
        message = "continue_final_message and add_generation_prompt can't both be true"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="continue_final_message")
