"""A model runner without a model, whose device answers at once, so that a step is the host's work alone."""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.heads.sampler import Sampler
from engine_server.core.logits.pipeline import LogitsPipeline
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ForwardOutput
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.device_time import DeviceTimer
from engine_server.modeling.memory.memory_ledger import MemoryLedger
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.progress import ProgressClock
from engine_server.modeling.staging import Staging

# The token of every answer.
TOKEN = 7


class ScriptedDevice(CpuPlatform):
    """A device in the host's memory that is given its work as a GPU is: copied inputs, and a sampler of kernels."""

    asynchronous = True
    samples_by_kernel = True

    def __init__(self) -> None:
        super().__init__()
        self._memory = torch.empty(0, dtype=torch.int32)

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return the same memory again, as a GPU's allocator of pinned memory does."""
        if size > len(self._memory):
            self._memory = torch.empty(2 * size, dtype=dtype)
        return self._memory[:size]


class ScriptedRunner:
    """What the engine core needs of a model runner of one full-attention model. Every request gets the same token."""

    def __init__(
        self,
        config: EngineConfig,
        ranks: Communicator,
        on_phase: Callable[[str, float], None],
        progress: ProgressClock | None = None,
    ) -> None:
        scheduling, longest = config.scheduler_config, config.model_config.max_model_len
        rows, self.config = scheduling.max_num_rows, config
        self.platform, self.timer = ScriptedDevice(), DeviceTimer()
        self.num_blocks, self.bytes_per_token = config.cache_config.num_gpu_blocks_override or 0, 0
        self.table = BlockTable(
            [BlockPool(self.num_blocks)], rows, longest, config.cache_config.block_size, [None]
        )
        self.staging = Staging(scheduling.max_num_batched_tokens, rows, self.table.ids.shape, self.platform)
        self.memory = MemoryLedger(self.platform)
        self.loaded = SimpleNamespace(rope=None, generates=True)
        self.caches: list[Tensor] = []
        self.batch_invariant, self.kernels, self.overlapped = False, "", True
        pipeline = LogitsPipeline([], self.platform)
        self.head = Sampler(
            self, pipeline, config.model_config.logprobs_mode, rows, self.platform, self.timer
        )
        tokens, largest = torch.full((rows,), TOKEN), torch.zeros(rows)
        self.head.kernels.sample = lambda logits, captured: (
            tokens[: len(logits)],
            largest[: len(logits)],
        )
        self._states = torch.zeros(rows, 1)

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        """Copy a step's inputs to the device."""
        size = len(inputs.sampling)
        self.staging.put(inputs.step, inputs.sampling, changes=inputs.table_changes)
        return ForwardOutput(self._states[:size], [], size)

    def logits(self, states: Tensor, captured_size: int | None = None, chunk: int | None = None) -> Tensor:
        return states

    def keep(self, tokens: Tensor) -> None:
        """Do nothing: the next step's inputs are not computed with."""

    def erase(self, block_ids: list[list[int]]) -> None:
        """Do nothing: there is no cache."""
