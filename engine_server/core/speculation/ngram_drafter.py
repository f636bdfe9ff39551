"""Drafts copied from each request's own tokens."""

from collections.abc import Sequence

import numpy as np

from engine_server.core.draft_state.ngram_index import NgramIndex
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.cost_model import Floats
from engine_server.core.speculation.drafter import Drafter


class NgramDrafter(Drafter):
    """A drafter without a model: prompt lookup, with an index for each running request."""

    is_free = True

    def __init__(self, shortest: int, longest: int) -> None:
        """shortest, longest: the numbers of tokens whose earlier occurrence is looked for."""
        self._lengths = shortest, longest
        self._proposals: list[list[int]] = []

    def seconds(self, most_requests: int) -> Floats:
        return np.zeros(most_requests + 1)

    def limits(self, requests: Sequence[GenerationRequest], most: int) -> list[int]:
        self._proposals = [self._index(request).propose(most) for request in requests]
        return [len(proposal) for proposal in self._proposals]

    def draft(self, requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        return [proposal[:length] for proposal, length in zip(self._proposals, lengths, strict=True)]

    def _index(self, request: GenerationRequest) -> NgramIndex:
        """Return the index of all known tokens of a running request."""
        if request.ngrams is None:
            request.ngrams = NgramIndex(*self._lengths)
        request.ngrams.extend(request.token_ids[len(request.ngrams) : request.num_known])
        return request.ngrams
