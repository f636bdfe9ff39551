"""One rank's steps of a draft head, which continue from the target's hidden states."""

from typing import Any

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.drafting.draft_steps import DraftSteps
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import ModelInputs
from engine_server.modeling.attention.interface import Staged, UnsupportedModelError
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.platform.interface import Platform


class DraftHeadSteps(DraftSteps):
    """The steps of a target's draft head, and the hidden states from which the next one starts.

    The states [most tokens of a step, hidden] are those of the target's latest step in the order of its tokens,
    replaced by those of the sequences that sample after each step of the head. Captured steps write to the same
    addresses.
    """

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        memory: MemoryLedger,
        ranks: Communicator,
        target: LoadedModel,
        layout: Layout,
    ) -> None:
        """Allocate the states; layout: of the target's cache. Raises UnsupportedModelError."""
        head, scheduling = target.head, config.scheduler_config
        shape = head.cache_shape()
        if not shape.spec.keeps_all:
            raise UnsupportedModelError(f"the draft head attends with {shape.spec}, which is not supported")
        count = head.layer + 1  # its layer is numbered after the target's, which are not in this cache
        own = Layout([shape.spec], [0], [0] * count, [0] * count, [shape])
        hidden_size: int = head.module.config.hidden_size
        super().__init__(config, platform, memory, ranks, target, own, layout, hidden_size)
        self.models = []
        num_tokens = max(scheduling.max_num_batched_tokens, scheduling.max_num_rows)
        self._hidden = platform.zeros((num_tokens, hidden_size), head.module.dtype)
        # The index in the states for each token of the step.
        self._sources = platform.zeros((num_tokens,), torch.int64)

    @property
    def buffers(self) -> list[Tensor]:
        return [*super().buffers, self._hidden]

    def target_states(self, target: LoadedModel, arguments: dict[str, Any]) -> Tensor:
        states, prepared = target.states_for_drafts(lambda: target.states(arguments))
        self._hidden[: len(prepared)].copy_(prepared)
        return states

    @torch.inference_mode()
    def logits(self, inputs: ModelInputs) -> Tensor:
        sources = self._platform.host_buffer(len(inputs.sources), torch.int64)
        sources.numpy()[:] = inputs.sources
        self._sources[: len(sources)].copy_(sources, non_blocking=True)
        return super().logits(inputs)

    def _reserve(self, part: str, num_tokens: int) -> None:
        if not self._memory.measures:
            return
        num_logits = min(self._config.scheduler_config.max_num_rows, num_tokens)
        with self._memory.running(part), self._loaded.apply_adapters(None):
            self._loaded.head.run_step(num_tokens, num_logits, self._config.model_config.max_model_len)

    def _states(self, staged: Staged) -> Tensor:
        token_ids, positions = staged.token_ids.long(), staged.positions.long()
        hidden = self._hidden.index_select(0, self._sources[: len(token_ids)])
        with self._loaded.apply_adapters(None):
            states = self._loaded.head.states(token_ids, positions, hidden)
        return states.index_select(0, staged.logit_rows)

    def _logits(self, states: Tensor) -> Tensor:
        """Compute the logits of hidden states, from which the next step starts."""
        self._hidden[: len(states)].copy_(states)
        with self._loaded.apply_adapters(None):
            return self._loaded.head.logits(states) if len(states) else states
