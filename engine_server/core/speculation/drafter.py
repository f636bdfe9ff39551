"""The interface of a drafter, which guesses the next tokens of requests."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.core.speculation.cost_model import Floats


class Drafter(Protocol):
    """A source of drafts for requests whose tokens are all known; `limits` may be asked while a step is in flight."""

    # True if `draft` takes no time, also while a step is in flight.
    is_free: ClassVar[bool] = False
    # True if `follow` must see the steps of prompts.
    follows_prompts: ClassVar[bool] = False

    def seconds(self, most_requests: int) -> Floats:
        """Return the time to draft one token for each of 0 to `most_requests` requests together, in seconds."""

    def debts(self, requests: Sequence[GenerationRequest]) -> list[float]:
        """Return the seconds that each request's drafts take before the first, for tokens not computed so far."""
        return [0.0] * len(requests)

    def limits(self, requests: Sequence[GenerationRequest], most: int) -> list[int]:
        """Return how many tokens can be drafted for each request, at most `most`."""

    def observe(self, batch: Batch) -> None:
        """Take in that a step of the target was launched."""
        return None

    def follow(self, requests: Sequence[Request]) -> None:
        """Take in what the latest step has computed of requests within their prompts, for which drafts would pay."""
        return None

    def draft(self, requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        """Return drafts of each request, at most its length, which is within the latest `limits`."""
