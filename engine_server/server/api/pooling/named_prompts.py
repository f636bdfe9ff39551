"""A model's own prompts: texts that it was trained to find before the texts that it embeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.base.quoting import quote
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.config import PoolingConfig

# By a request's input_type: the names of its prompt, in the order in which sentence-transformers looks for them.
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
INPUT_TYPES = {
    "query": QUERY,
    "search_query": QUERY,
    "document": DOCUMENT,
    "passage": DOCUMENT,
    "search_document": DOCUMENT,
}


def prompt_for(pooling: PoolingConfig, input_type: str) -> str:
    """Return the prompt for a kind of input; empty if the model has none for queries or documents.

    Other kinds are names of prompts, as Cohere's classification and clustering. Raises ApiError 400.
    """
    if input_type in INPUT_TYPES:
        names = INPUT_TYPES[input_type]
        return next((pooling.prompts[name] for name in names if name in pooling.prompts), "")
    by_name = {name.lower(): text for name, text in pooling.prompts.items()}
    if input_type.lower() not in by_name:
        known = ", ".join(dict.fromkeys([*INPUT_TYPES, *by_name]))
        message = f"input_type is {quote(input_type)}; the model knows {known}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="input_type")
    return by_name[input_type.lower()]
