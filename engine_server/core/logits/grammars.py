"""The tokens that each request may draw next, by allowed_token_ids, bad_words and min_tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.core.logits.request_cache import RequestCache
from engine_server.core.scheduling.batch import Batch, Scheduled, sampled_part
from engine_server.core.scheduling.request import GenerationRequest, PoolingRequest
from engine_server.modeling.platform.interface import Platform


class TokenMask(NamedTuple):
    """The tokens that may be drawn from one row of logits, as int64 tensors on the device."""

    # Index among the rows that sample.
    row: int
    # None: all.
    allowed: Tensor | None
    # Of the allowed tokens, those that are excluded.
    banned: list[Tensor]

    def apply(self, logits: Tensor) -> None:
        """Set the other tokens of float32 logits [n, vocabulary] to minus infinity, in place."""
        row = logits[self.row]
        if self.allowed is not None:
            kept = row[self.allowed]
            row.fill_(-torch.inf)[self.allowed] = kept
        for token_ids in self.banned:
            row.index_fill_(0, token_ids, -torch.inf)


@dataclass(slots=True, frozen=True)
class Rules:
    """One request's constraints on its tokens. The tensors are on the device."""

    allowed: Tensor | None
    # Bad words of one token.
    banned: list[Tensor]
    # The tokens that end a request, which are banned before output token `min_tokens`.
    ends: list[Tensor]
    min_tokens: int
    # Bad words of several tokens, by the last token but one: the tokens before the last, and the last.
    phrases: dict[int, list[tuple[list[int], int]]]


class Grammars:
    """The token masks of a step, filled on the host. The part that depends on the request alone is built once."""

    def __init__(self, eos_token_ids: Sequence[int], platform: Platform) -> None:
        self._eos_token_ids = list(eos_token_ids)
        self._platform = platform
        self._rules = RequestCache(self._build)

    def fill(self, batch: Batch) -> list[TokenMask]:
        """Return a mask for each request that samples and may not draw any token.

        Earlier steps' tokens must be known for requests with `Request.needs_last_token`.
        """
        masks = []
        for row, scheduled in enumerate(sampled_part(batch)):
            if isinstance(scheduled.request, PoolingRequest):
                continue
            rules = self._rules.get(scheduled)
            if rules is not None and (mask := self._mask(row, scheduled, rules)):
                masks.append(mask)
        return masks

    def _build(self, request: GenerationRequest) -> Rules | None:
        """Return None for a request that may always draw any token."""
        params = request.params
        words = params.bad_words_token_ids or []
        if params.allowed_token_ids is None and not words and not params.min_tokens:
            return None
        phrases: dict[int, list[tuple[list[int], int]]] = {}
        for *before, last in words:
            if before:
                phrases.setdefault(before[-1], []).append((before, last))
        ends = self._eos_token_ids + (params.stop_token_ids or []) if params.min_tokens else []
        allowed = params.allowed_token_ids
        return Rules(
            None if allowed is None else self._platform.to_device(allowed),
            self._tensors([word[0] for word in words if len(word) == 1]),
            self._tensors(ends),
            params.min_tokens,
            phrases,
        )

    def _mask(self, row: int, scheduled: Scheduled, rules: Rules) -> TokenMask | None:
        banned = rules.banned
        if rules.ends and scheduled.output_index < rules.min_tokens:
            banned = banned + rules.ends
        if rules.phrases:
            output = scheduled.request.token_ids[scheduled.request.num_prompt : scheduled.end]
            banned = banned + self._tensors(continuations(rules.phrases, output))
        return TokenMask(row, rules.allowed, banned) if rules.allowed is not None or banned else None

    def _tensors(self, token_ids: list[int]) -> list[Tensor]:
        return [self._platform.to_device(token_ids)] if token_ids else []


def continuations(phrases: dict[int, list[tuple[list[int], int]]], output: list[int]) -> list[int]:
    """Return the tokens that would complete one of `phrases` after `output`."""
    candidates = phrases.get(output[-1], []) if output else []
    return [last for before, last in candidates if output[-len(before) :] == before]
