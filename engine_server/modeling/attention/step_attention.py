"""Attention within a step, without a KV cache: for encoders, whose prompts are never cut, and for probes."""

from torch import Tensor

from engine_server.modeling.attention.interface import AttentionBackend, StepInputs
from engine_server.modeling.attention.torch_scores import Sequence
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring


class StepAttention(AttentionBackend):
    """Attention in plain torch of each sequence's tokens of this step."""

    def __init__(self, writes_scores: bool = False) -> None:
        """writes_scores: see `Platform`."""
        self.writes_scores = writes_scores

    def begin(self, inputs: StepInputs) -> None:
        spans = zip(inputs.starts.tolist(), inputs.lengths.tolist(), strict=True)
        self._sequences = [
            (slice(start, start + length), Sequence(length, self.writes_scores)) for start, length in spans
        ]

    def end(self) -> None:
        self._sequences = []

    def attend(self, layer: int | None, heads: Heads, scoring: Scoring) -> Tensor:
        return self.within_step(*heads.pending.apply(heads.query, heads.key), heads.value, scoring)

    def within_step(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Attend over the step's own K and V, [T, kv heads, dim] each."""
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for own, sequence in self._sequences:
            queries, keys, values = (part[own].transpose(0, 1) for part in (query, key, value))
            output[own] = sequence.attend(queries, keys, values, scoring)
        return output
