"""Scores of attention."""

from typing import NamedTuple

from torch import Tensor

from engine_server.modeling.heads.window import Window


class Scoring(NamedTuple):
    """Scores of one attention layer: their scale, their bias, and which tokens are visible."""

    scaling: float
    # Only the tokens of the window are visible.
    window: Window | None = None
    # Scores become softcap * tanh(scores / softcap).
    softcap: float | None = None
    # [query heads], scores of a token without a value (gpt-oss).
    sinks: Tensor | None = None
    # [query heads], subtracted from a score for each token in between (ALiBi).
    alibi: Tensor | None = None
    causal: bool = True
    # [1, query heads, n, n], added to the scores of up to n tokens.
    relative_bias: Tensor | None = None

    @property
    def fused(self) -> bool:
        """Return whether torch's fused attention takes these scores."""
        return self.softcap is None and self.sinks is None
