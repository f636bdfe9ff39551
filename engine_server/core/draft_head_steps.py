"""One rank's steps of a draft head, which continue from the target's hidden states."""

from typing import Any

from torch import Tensor

from engine_server.core.loaded_model import LoadedModel
from engine_server.modeling.drafting.draft_head import collect_states
from engine_server.modeling.platform.interface import Platform


class DraftHeadSteps:
    """The forwards of a target's draft head, and the hidden states from which the next one starts.

    states: [most tokens of a step, hidden], those of the target's latest step in the order of its tokens, replaced by
    those of the sequences that sample after each step of the head. Captured steps write to the same addresses.
    """

    def __init__(self, loaded: LoadedModel, num_tokens: int, platform: Platform) -> None:
        """num_tokens: the most tokens of a step."""
        self._loaded = loaded
        module = loaded.head.module
        self.states = platform.zeros((num_tokens, module.config.hidden_size), module.dtype)

    def target_states(self, arguments: dict[str, Any]) -> Tensor:
        """Return the target's hidden states [T, hidden], and keep those that the head takes."""
        head = self._loaded.head
        with collect_states(self._loaded.model, head.aux_layers) as auxiliary:
            states = self._loaded.states(arguments)
        prepared = head.prepare(states, auxiliary)
        self.states[: len(prepared)].copy_(prepared)
        return states

    def logits(self, token_ids: Tensor, positions: Tensor, sources: Tensor, logit_rows: Tensor) -> Tensor:
        """Return logits [n, vocabulary] of the tokens in `logit_rows`. To be called in the target's forward context.

        token_ids, positions: int64 [T], each token with the position before its own; sources: int64 [T], the index of
        each position's hidden state in `states`; logit_rows: [n].
        """
        head = self._loaded.head
        states = head.states(token_ids, positions, self.states.index_select(0, sources))
        last = states.index_select(0, logit_rows)
        self.states[: len(last)] = last
        return head.logits(last) if len(last) else last
