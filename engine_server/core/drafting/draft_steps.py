"""The interface of one rank's steps that compute drafts, and the cache, the capture and the staging of all kinds."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.step_capture import EagerStep, StepCapture
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import Staged, StepInputs, UnsupportedModelError
from engine_server.modeling.cache.kv_cache import cache_dtype
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.graphs.staging import Staging
from engine_server.modeling.platform.interface import Platform


class DraftSteps(ABC):
    """Steps of a draft model or a draft head, which are staged like the target's, with the same block table.

    A block of the target's layers that keep the whole context stands for one of their own cache too.
    """

    # Models that are loaded for these steps alone.
    models: list[LoadedModel]

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        memory: MemoryLedger,
        ranks: Communicator,
        loaded: LoadedModel,
        layout: Layout,
        target: Layout,
        hidden_size: int,
    ) -> None:
        """Allocate the buffers of captured steps.

        config: that of `loaded`, the model that computes the steps; layout: of the cache, which keeps the whole
        context; target: of the target's cache; hidden_size: of the states from which logits are computed. Raises
        UnsupportedModelError if none of the target's kinds of attention keeps the whole context.
        """
        if target.whole_kind is None:
            raise UnsupportedModelError(
                "every layer of the model has a window, so that blocks are freed before drafts are computed from them; "
                "only method ngram is allowed"
            )
        self._config = config
        self._platform = platform
        self._memory = memory
        self._loaded = loaded
        self._captured = StepCapture(config, platform, ranks, loaded, hidden_size)
        kinds = [target.whole_kind] * len(layout.kinds)
        self.layout = layout._replace(specs=target.specs, pools=target.pools, kinds=kinds)
        self.dtype = cache_dtype(config.cache_config, loaded.model.dtype, platform)

    @abstractmethod
    def _reserve(self, part: str, num_tokens: int) -> None:
        """Reserve, for a part of the memory, what a step takes while it runs, if the device measures that."""

    @abstractmethod
    def _states(self, staged: Staged) -> Tensor:
        """Compute the hidden states [n, hidden] of the sequences that sample. To be called in a forward's context."""

    @abstractmethod
    def _logits(self, states: Tensor) -> Tensor:
        """Compute the logits [n, vocabulary] of hidden states [n, hidden]."""

    def reserve(self) -> None:
        """Reserve the memory of the largest step, and that of captured ones, which are decodes."""
        scheduling = self._config.scheduler_config
        self._reserve("largest step", scheduling.max_num_batched_tokens)
        if self._captured.most_tokens:
            self._reserve("captured steps of drafts", scheduling.max_num_rows)

    def target_states(self, target: LoadedModel, arguments: dict[str, Any]) -> Tensor:
        """Return the target's hidden states [T, hidden] of a step, and keep those from which drafts continue."""
        return target.states(arguments)

    def allocate(self, pool_sizes: list[int], staging: Staging, target: ForwardContext) -> None:
        """Allocate the cache, with as many blocks as the target's.

        staging: has the inputs of steps; target: the context of the target's forwards, whose clocks these share.
        """
        with self._memory.taking("KV cache of drafts") as tensors:
            self._backend = self._platform.paged_attention(
                self.layout, pool_sizes, self._config.cache_config.block_size, self.dtype
            )
            tensors += self.caches
        self._context = ForwardContext(self._backend, target.timer, target.progress)
        self._staging = staging

    @property
    def caches(self) -> list[Tensor]:
        """The cache."""
        return self._backend.caches

    @property
    def buffers(self) -> list[Tensor]:
        """The tensors in which steps leave what later ones or captured ones read."""
        return self._captured.tensors

    @property
    def captured_bytes(self) -> int:
        """The memory of the captured steps, except the buffers."""
        return self._captured.bytes

    def erase(self, block_ids: list[list[int]]) -> None:
        """Zero the content of blocks of each pool."""
        self._backend.erase(block_ids)

    def capture(self, most: int) -> None:
        """Capture decodes of at most `most` sequences if the device and the model allow it."""
        step = EagerStep(self._forward, self._logits, self._context, self._staging, most)
        self._captured.capture([step], None)

    def release(self) -> None:
        """Free the memory of the captured steps, except the buffers."""
        self._captured.release(None)

    @torch.inference_mode()
    def logits(self, inputs: ModelInputs) -> Tensor:
        """Launch the computation of logits [n, vocabulary] of the sequences that sample. All ranks must call it."""
        replay = self._captured.replay_for(inputs)
        staged = self._staging.put(
            inputs.step, inputs.sampling, replay and replay.shape, inputs.table_changes
        )
        if replay is None:
            states, captured = self._forward(inputs.step, staged), None
        else:
            with self._context.replay(self._staging.attach(inputs.step, staged)):
                states = self._captured.states(replay)[: len(inputs.sampling)]
                captured = self._captured.logits(replay, len(states))
        with self._context.timer.measure():
            return self._logits(states) if captured is None else captured

    def _forward(self, step: StepInputs, staged: Staged) -> Tensor:
        with self._context.run(self._staging.attach(step, staged)):
            return self._states(staged)
