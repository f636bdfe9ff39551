"""The tokens that a request's parameters allow: chosen ones, no bad words, no end before `min_tokens`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine_server.requests.sampling_params import SamplingParams
from engine_server.structured.token_bits import Bits, bits_of


@dataclass(slots=True, frozen=True)
class TokenRules:
    """A request's constraints on its tokens besides its grammar."""

    # The allowed tokens without bad words of one token.
    allowed: Bits
    # The same without the tokens that end a request, which are not allowed before output token `min_tokens`.
    before_min_tokens: Bits
    min_tokens: int
    # True if `allowed` excludes a token.
    excludes: bool
    # Bad words of several tokens, by the last token but one: the tokens before the last, and the last.
    phrases: dict[int, list[tuple[list[int], int]]]

    @classmethod
    def of(cls, params: SamplingParams, eos_token_ids: Sequence[int], size: int) -> "TokenRules | None":
        """Return None for a request that may always draw any token. size: the bytes of a row of bits."""
        words = params.bad_words_token_ids or []
        if params.allowed_token_ids is None and not words and not params.min_tokens:
            return None
        phrases: dict[int, list[tuple[list[int], int]]] = {}
        for *before, last in words:
            if before:
                phrases.setdefault(before[-1], []).append((before, last))
        allowed = np.full(size, 255, np.uint8)
        if params.allowed_token_ids is not None:
            allowed = bits_of(params.allowed_token_ids, size)
        allowed &= ~bits_of([word[0] for word in words if len(word) == 1], size)
        ends = bits_of([*eos_token_ids, *(params.stop_token_ids or [])], size)
        excludes = params.allowed_token_ids is not None or any(len(word) == 1 for word in words)
        return cls(allowed, allowed & ~ends, params.min_tokens, excludes, phrases)

    def apply_to(self, output_index: int) -> bool:
        """Return True if the output token at an index may be limited."""
        return self.excludes or bool(self.phrases) or output_index < self.min_tokens

    def restrict(self, bits: Bits, token_ids: list[int], start: int, end: int) -> None:
        """Clear, in place, the bits of tokens that may not follow the output `token_ids[start:end]`."""
        bits &= self.before_min_tokens if end - start < self.min_tokens else self.allowed
        if self.phrases:
            for token_id in continuations(self.phrases, token_ids[start:end]):
                bits[token_id >> 3] &= ~np.uint8(1 << (token_id & 7))


def continuations(phrases: dict[int, list[tuple[list[int], int]]], output: list[int]) -> list[int]:
    """Return the tokens that would complete one of `phrases` after `output`."""
    candidates = phrases.get(output[-1], []) if output else []
    return [last for before, last in candidates if output[-len(before) :] == before]
