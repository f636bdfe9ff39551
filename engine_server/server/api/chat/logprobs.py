"""Log-probabilities in the shape of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine_server.server.api.answers import LOWEST_LOGPROB

if TYPE_CHECKING:
    from engine_server.requests.logprobs import Logprob, TokenLogprobs


class TopLogprob(msgspec.Struct):
    """A likely token at one place of the text."""

    token: str
    logprob: float
    # The token's UTF-8 bytes; None for a part of a character.
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the text, with the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]


def to_logprobs(tokens: Sequence[TokenLogprobs] | None, top: int) -> Logprobs | None:
    """Return the log-probabilities of consecutive tokens, each with the `top` likeliest at its place."""
    if not tokens:
        return None
    content = []
    for token in tokens:
        sampled = next(iter(token.values()))
        entries = [entry for entry in token.values() if (entry.rank or 0) <= top]
        likeliest = sorted(entries, key=lambda entry: entry.rank or 0)
        alternatives = [TopLogprob(*token_fields(entry)) for entry in likeliest]
        content.append(TokenLogprob(*token_fields(sampled), alternatives))
    return Logprobs(content)


def token_fields(entry: Logprob) -> tuple[str, float, list[int] | None]:
    token = entry.decoded_token or ""
    # A token that is a part of a character has no text, and its bytes are unknown.
    token_bytes = list(token.encode()) if token else None
    return token, max(entry.logprob, LOWEST_LOGPROB), token_bytes
