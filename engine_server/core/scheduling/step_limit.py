"""The limit on the time of steps with prompts."""

from engine_server.core.scheduling.batch import Batch, num_tokens

# Tokens of a step that are assumed to take the whole time before one was measured.
FIRST = 32
# Tokens of a prompt that every step may have, and that a step must have to be measured.
FEWEST = 16
# How many times as long a step may take in which nothing decodes. Prompts are faster then: of SmolLM2-135M by a tenth.
ALONE = 2
# The weight of the latest step in the measured time.
LATEST = 0.5


class StepLimit:
    """The number of tokens that a step can compute within a time.

    The time of a token depends on the model, the machine and the lengths of contexts, so it is measured in each step
    with prompts, as a moving average. A step is at most about twice as large as the one before it.
    """

    def __init__(self, seconds: float) -> None:
        """seconds: the longest time of a step with decodes."""
        self._seconds = seconds
        self._seconds_per_token = seconds / FIRST

    def observe(self, batch: Batch, seconds: float) -> None:
        """Take the duration of a step, unless it has less than FEWEST tokens of prompts."""
        if sum(scheduled.num_tokens for scheduled in batch if scheduled.num_tokens > 1) < FEWEST:
            return
        latest = seconds / num_tokens(batch)
        self._seconds_per_token += LATEST * (latest - self._seconds_per_token)

    def num_tokens(self, num_decodes: int) -> int:
        """Return the tokens of the next step: one for each decode and FEWEST more, even if they take longer."""
        seconds = self._seconds if num_decodes else ALONE * self._seconds
        return max(int(seconds / self._seconds_per_token), num_decodes + FEWEST)
