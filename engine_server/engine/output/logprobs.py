"""Conversion of log-probabilities from the core's arrays to outputs."""

from tokenizers import Tokenizer

from engine_server.engine.output.token_decoder import UNFINISHED
from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.requests.messages import TokenLogprobsArray


class LogprobsConverter:
    """A converter that adds each token's text, decoded once per token id.

    tokenizer: None: tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str | None] = {}

    def convert(self, token: TokenLogprobsArray) -> TokenLogprobs:
        """Return one position's log-probabilities by token id, in the core's order."""
        return {
            token_id: Logprob(logprob, rank, self._text(token_id))
            for token_id, logprob, rank in zip(token.token_ids, token.logprobs, token.ranks, strict=True)
        }

    def _text(self, token_id: int) -> str | None:
        """Return a token's text, empty for a token that is part of a character."""
        if self._tokenizer is None:
            return None
        text = self._texts.get(token_id)
        if text is None:
            text = self._tokenizer.decode([token_id], skip_special_tokens=False)
            text = self._texts[token_id] = "" if UNFINISHED in text else text
        return text
