"""Drafts copied from each request's own tokens."""

from collections.abc import Sequence

import numpy as np

from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.cost_model import Floats
from engine_server.core.speculation.drafter import Drafter
from engine_server.core.speculation.ngram_index import NgramIndex


class NgramDrafter(Drafter):
    """A drafter without a model: prompt lookup, with an index for each running request."""

    is_free = True

    def __init__(self, shortest: int, longest: int) -> None:
        """shortest, longest: the numbers of tokens whose earlier occurrence is looked for."""
        self._lengths = shortest, longest
        # By row of the block table: the request that has it, and its index.
        self._indexes: dict[int, tuple[GenerationRequest, NgramIndex]] = {}
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
        assert request.row is not None
        known = self._indexes.get(request.row)
        if known is None or known[0] is not request:
            known = self._indexes[request.row] = request, NgramIndex(*self._lengths)
        index = known[1]
        index.extend(request.token_ids[len(index) : request.num_known])
        return index
