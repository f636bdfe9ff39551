"""Conversion of log-probabilities from the core's arrays to what callers see."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from engine_server.engine.output.token_decoder import UNFINISHED
from engine_server.requests.messages import TokenLogprobsArray
from engine_server.requests.outputs import Logprob, TokenLogprobs


class LogprobsConverter:
    """Adds each token's text, which it decodes once per token id. May be used by several threads."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def convert(self, token: TokenLogprobsArray) -> TokenLogprobs:
        """Return one position's log-probabilities by token id, in the core's order."""
        return {
            token_id: Logprob(logprob, rank, self._text(token_id))
            for token_id, logprob, rank in zip(token.token_ids, token.logprobs, token.ranks, strict=True)
        }

    def convert_prompt(self, tokens: Sequence[TokenLogprobsArray]) -> list[TokenLogprobs | None]:
        """Return those of a prompt: None for its first token, which nothing precedes."""
        return [None, *map(self.convert, tokens)]

    def _text(self, token_id: int) -> str:
        """Return a token's text, empty for a token that is part of a character."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._tokenizer.decode([token_id]) if self._tokenizer else ""
            text = self._texts[token_id] = "" if UNFINISHED in text else text
        return text
