"""Conversion of log-probabilities from the core's arrays to outputs."""

from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.requests.messages import TokenLogprobsArray


class LogprobsConverter:
    """A converter that adds each token's text."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def convert(self, token: TokenLogprobsArray, begins: bool = False) -> TokenLogprobs:
        """Return one position's log-probabilities by token id, in the core's order. begins: a text begins there."""
        text = self._texts.first if begins else self._texts.text
        return {
            token_id: Logprob(logprob, rank, text(token_id))
            for token_id, logprob, rank in zip(token.token_ids, token.logprobs, token.ranks, strict=True)
        }
