"""The rate at which a request's drafts are accepted."""

from dataclasses import dataclass

# The weight of each new draft in the mean once there have been some: about the last 8 drafts count.
WEIGHT = 1 / 8
# The number of drafts that the prior stands for.
PRIOR_DRAFTS = 2


@dataclass(slots=True)
class Acceptance:
    """An exponentially weighted mean over the drafts of one request that were verified, at first the mean of all.

    A draft is verified if all drafts before it in its step were accepted: those after the first rejected one are no
    evidence.
    """

    # The probability that a draft is accepted if all before it were; at first a prior.
    probability: float = 0.5
    num_verified: int = 0
    # The last step in which the request had drafts.
    last_step: int = 0

    def update(self, drafted: int, accepted: int) -> None:
        """Count a step's drafts, of which the first `accepted` were accepted."""
        for hit in [1] * accepted + [0] * (accepted < drafted):
            weight = max(WEIGHT, 1 / (self.num_verified + PRIOR_DRAFTS + 1))
            self.probability += weight * (hit - self.probability)
            self.num_verified += 1
