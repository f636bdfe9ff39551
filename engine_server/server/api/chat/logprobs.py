"""Log-probabilities in the shape of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine_server.server.api.openai_answer import finite, token_text

if TYPE_CHECKING:
    from engine_server.engine.output.token_texts import TokenTexts
    from engine_server.requests.logprobs import Logprob, TokenLogprobs


class TopLogprob(msgspec.Struct):
    """A likely token at one place of the text."""

    token: str
    logprob: float
    # The token's UTF-8 bytes, which may be a part of a character; None if they are not known.
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the text, with the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]


def to_logprobs(
    tokens: Sequence[TokenLogprobs] | None, top: int, texts: TokenTexts, as_ids: bool = False
) -> Logprobs | None:
    """Return the log-probabilities of consecutive tokens, each with the `top` likeliest at its place (-1: all).

    as_ids: name tokens by their ids.
    """
    if not tokens:
        return None
    content = []
    for token in tokens:
        sampled = next(iter(token.items()))
        entries = [item for item in token.items() if top == -1 or (item[1].rank or 0) <= top]
        likeliest = sorted(entries, key=lambda item: item[1].rank or 0)
        alternatives = [TopLogprob(*token_fields(*item, texts, as_ids)) for item in likeliest]
        content.append(TokenLogprob(*token_fields(*sampled, texts, as_ids), alternatives))
    return Logprobs(content)


def token_fields(
    token_id: int, entry: Logprob, texts: TokenTexts, as_id: bool
) -> tuple[str, float, list[int] | None]:
    text = entry.decoded_token
    token_bytes = None
    if text:
        token_bytes = list(text.encode())
    elif text is not None:
        token_bytes = list(texts.part(token_id)) or None
    return token_text(token_id, entry, as_id), finite(entry), token_bytes
