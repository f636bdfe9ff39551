"""The requests of one step, and their tokens in it."""

from collections.abc import Iterable
from itertools import groupby

import msgspec

from engine_server.core.scheduling.request import UNKNOWN, Request


class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """A request's part of a step: its tokens from `start` to `start + num_tokens`.

    A request whose step verifies k drafts has k + 1 consecutive parts of one token each: its last token, then the
    drafts. Each part samples, so the rest of the step needs no notion of drafts.
    """

    request: Request
    # The request's row of the block table during the step; the request may have left it when results arrive.
    row: int
    # Number of tokens that were computed before the step.
    start: int
    num_tokens: int
    # True if the step reaches the request's last token, so that its head returns a result.
    samples: bool
    # The draft of the token that this part samples; UNKNOWN: there is none.
    draft: int = UNKNOWN

    @property
    def end(self) -> int:
        """Number of tokens that are computed once the step is done."""
        return self.start + self.num_tokens

    @property
    def output_index(self) -> int:
        """Index within the output of the token that the step samples."""
        return self.start + self.num_tokens - self.request.num_prompt


Batch = list[Scheduled]


def sampled_part(batch: Batch) -> Batch:
    """Return the entries whose requests get a result from the step, in the batch's order."""
    return [scheduled for scheduled in batch if scheduled.samples]


def output_indexes(batch: Batch) -> list[int]:
    """Return the index within its request's output of the token that each part samples."""
    return [one.start + one.num_tokens - one.request.num_prompt for one in batch]


def by_request(batch: Batch) -> Iterable[tuple[Request, Batch]]:
    """Group a batch's parts by their request, in the batch's order."""
    for request, parts in groupby(batch, lambda scheduled: scheduled.request):
        yield request, list(parts)


def has_drafts(batch: Batch) -> bool:
    """Return True if the step verifies drafts, so that only its results tell how many tokens each request gets."""
    return any(scheduled.draft != UNKNOWN for scheduled in batch)


def num_tokens(batch: Batch) -> int:
    """Return the number of tokens that the step computes."""
    return sum(scheduled.num_tokens for scheduled in batch)
