"""A request's latest drafts, and how many of its drafts come true."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_server.core.draft_state.acceptance import Acceptance


@dataclass(slots=True)
class DraftHistory:
    """The drafts of a request, whether or not a step verifies them."""

    acceptance: Acceptance
    # The latest drafts, and the number of tokens before them.
    drafts: list[int] = field(default_factory=list)
    num_before: int = 0

    def learn(self, token_ids: Sequence[int], num_known: int, everyone: Acceptance) -> None:
        """Compare the latest drafts, once, with the tokens that the request has got in their place.

        token_ids: the request's, of which the first `num_known` are known. everyone: the mean over all requests, which
        counts them too.
        """
        drafts, self.drafts = self.drafts, []
        sampled = token_ids[self.num_before : min(self.num_before + len(drafts), num_known)]
        accepted = 0
        for draft, token in zip(drafts, sampled, strict=False):
            if draft != token:
                break
            accepted += 1
        if sampled:
            for mean in (self.acceptance, everyone):
                mean.update(min(accepted + 1, len(sampled)), accepted)
