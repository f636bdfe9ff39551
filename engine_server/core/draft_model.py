"""One rank's part of the draft model of speculative decoding, whose cache has the blocks of the target's."""

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.step_capture import DecodeStep, StepCapture
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import Staged, StepInputs, UnsupportedModelError
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.device_time import DeviceTimer
from engine_server.modeling.loading.probe import probe
from engine_server.modeling.memory.cache_layout import Layout, lay_out
from engine_server.modeling.memory.device_memory import measured_memory
from engine_server.modeling.memory.kv_cache import cache_dtype
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.progress import ProgressClock
from engine_server.modeling.staging import Staging

# Tokens of the forward that shows the shapes of the layers' caches.
PROBED_TOKENS = 2


class DraftModel:
    """A small model that computes logits for drafts. Its steps are staged like the target's, with the same block table.

    A block of the target's cache stands for one of this model's cache too, so that one pool serves both.
    """

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        ranks: Communicator,
        timer: DeviceTimer,
        progress: ProgressClock | None,
        windows: list[int | None],
    ) -> None:
        """Load the model. config: the draft's own; windows: of the target's kinds of attention.

        Raises UnsupportedModelError if the block table has no kind that keeps the whole context.
        """
        self._config = config
        self._platform = platform
        self._ranks = ranks
        self._timer = timer
        self._progress = progress
        self.loaded = LoadedModel(config, platform, ranks, progress)
        if self.loaded.rope is not None:
            raise UnsupportedModelError(
                "the draft model's rope changes with a sequence's length; it can't continue a cache with another rope"
            )
        if None not in windows:
            raise UnsupportedModelError(
                "every layer of the model has a window, so that blocks are freed before a draft model reads them; only "
                "method ngram is allowed"
            )
        model = self.loaded.model
        shapes = probe(
            self.loaded.body, model.config.get_text_config(), PROBED_TOKENS, platform.device,
            first_position=self.loaded.first_position,
        )  # fmt: skip
        # Windows limit what its layers attend to, not what the cache keeps.
        whole = lay_out([shape._replace(window=None) for shape in shapes], config.model_config.max_model_len)
        self.layout: Layout = whole._replace(windows=windows, kinds=[windows.index(None)] * len(whole.kinds))
        self.dtype = cache_dtype(config.cache_config, model.dtype, platform)

    def allocate(self, num_blocks: int, staging: Staging) -> None:
        """Allocate the cache, with as many blocks as the target's; the inputs of steps are in `staging`."""
        with measured_memory("draft model's KV cache", self._platform):
            self.backend = self._platform.paged_attention(
                self.layout, num_blocks, self._config.cache_config.block_size, self.dtype
            )
        self._context = ForwardContext(self.backend, self._timer, self._progress)
        self._staging = staging
        self._captured = StepCapture(self._config, self._platform, self._ranks, self.loaded)

    @property
    def tensors(self) -> list[Tensor]:
        """The cache and the buffers of captured steps."""
        return [*self.backend.caches, *self._captured.tensors]

    def capture(self, most: int) -> None:
        """Capture decodes of at most `most` sequences if the device and the model allow it."""
        self._captured.capture(DecodeStep(self._states, self._context, self._staging, most), None)

    def release(self) -> None:
        """Free the memory of the captured steps, except the buffers."""
        self._captured.release(None)

    @torch.inference_mode()
    def logits(self, inputs: ModelInputs) -> Tensor:
        """Launch the computation of logits [n, vocabulary] of the sequences that sample. All ranks must call it."""
        size = self._captured.size_for(inputs)
        staged = self._staging.put(inputs.step, inputs.sampling, size or 0, inputs.table_changes)
        if size is None:
            with self._timer.measure():
                return self.loaded.split.logits(self._states(inputs.step, staged))
        with self._context.replay(self._staging.attach(inputs.step, staged)):
            states = self._captured.states(size, adapted=False)[: len(inputs.sampling)]
        with self._timer.measure():
            captured = self._captured.logits(size)
            return self.loaded.split.logits(states) if captured is None else captured[: len(states)]

    @torch.inference_mode()
    def _states(self, step: StepInputs, staged: Staged) -> Tensor:
        """Compute the hidden states [n, hidden] of the sequences that sample."""
        positions = staged.positions.long() + self.loaded.first_position
        arguments = {
            "input_ids": staged.token_ids.long().unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "use_cache": False,
        }
        with self._context.run(self._staging.attach(step, staged)):
            return self.loaded.states(arguments).index_select(0, staged.logit_rows)
