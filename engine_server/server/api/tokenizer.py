"""The tokenizer of requests that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.server.loaded_model import LoadedModel


def require_tokenizer(model: LoadedModel) -> PreTrainedTokenizerBase:
    """Return the tokenizer. Raises ApiError 400 if the server was started without one."""
    if model.tokenizer is None:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VALUE,
            "the server has no tokenizer: it was started with --skip-tokenizer-init",
        )
    return model.tokenizer
