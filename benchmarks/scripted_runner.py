"""A model runner without a model, whose device answers at once, so that a step is the host's work alone."""

from collections.abc import Iterator

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.config.start_facts import StartFacts
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.forward_output import NO_OUTPUT, ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.runner import OnPhase, Runner
from engine_server.core.sampling.kernel_sampler import KernelSampler
from engine_server.core.sampling.pipeline import LogitsPipeline
from engine_server.core.sampling.sampler import Sampler
from engine_server.modeling.cache.spec import FULL
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.graphs.staging import Staging
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.interface import Platform

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


class ScriptedKernels(KernelSampler):
    """A sampler of kernels that has sampled before."""

    def __init__(self, max_num_rows: int, platform: Platform) -> None:
        super().__init__(max_num_rows, platform)
        self._tokens.fill_(TOKEN)

    def sample(self, logits: Tensor, captured: bool) -> tuple[Tensor, Tensor]:
        return self._tokens[: len(logits)], self._largest[: len(logits)]


class ScriptedRunner(Runner):
    """A runner of one full-attention model. Every request gets the same token."""

    def __init__(
        self,
        config: EngineConfig,
        ranks: Communicator,
        on_phase: OnPhase = lambda name, seconds: None,
        progress: ProgressClock | None = None,
    ) -> None:
        scheduling, longest = config.scheduler_config, config.model_config.max_model_len
        rows, num_blocks = scheduling.max_num_rows, config.cache_config.num_gpu_blocks_override or 0
        self.platform, self.timer, self.overlapped = ScriptedDevice(), DeviceTimer(), True
        self.facts = StartFacts(num_blocks, 0, batch_invariant=False, kernels="", memory={})
        self.table = BlockTable(
            [BlockPool(num_blocks)], rows, longest, config.cache_config.block_size, [FULL]
        )
        self._staging = Staging(scheduling.max_num_batched_tokens, rows, self.table.ids.shape, self.platform)
        pipeline = LogitsPipeline([], self.platform)
        sampler = Sampler(pipeline, config.model_config.logprobs_mode, rows, self.platform, self.timer)
        sampler.kernels = ScriptedKernels(rows, self.platform)
        self.head, self._states = sampler, torch.zeros(rows, 1)

    @property
    def caches(self) -> list[Tensor]:
        return []

    @property
    def attention(self) -> str:
        return "none"

    @property
    def stretched(self) -> bool:
        return False

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        staged = self._staging.put(inputs.step, inputs.sampling, changes=inputs.table_changes)
        return NO_OUTPUT._replace(rows=self._states[: len(inputs.sampling)], sampled=staged.sampling)

    def logits(self, output: ForwardOutput) -> Iterator[Tensor]:
        yield output.rows

    def keep(self, output: ForwardOutput, tokens: Tensor) -> None:
        """Do nothing: the next step's inputs are not computed with."""

    def erase(self, block_ids: list[list[int]]) -> None:
        """Do nothing: there is no cache."""
