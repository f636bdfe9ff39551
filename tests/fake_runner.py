"""A runner without a model, for tests of policies: which requests run, and which drafts and adapters they get."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from engine_server.config.start_facts import StartFacts
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.forward_output import NO_OUTPUT, ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ModelRunner
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.attention.interface import IntArray
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.cache.spec import FULL
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.platform.cpu import CpuPlatform


class FakeRunner(ModelRunner):
    """A model whose logits are random numbers seeded by all tokens of the context, as the blocks of a cache hold them.

    So a wrong block, slot or token gives another output. The engine's draft model, if it has one, is the same model
    with a cache of its own.
    """

    def __init__(self, config: Any, ranks: Any, on_phase: Callable[..., None], progress: Any = None) -> None:
        self.config, self.ranks, self.timer, self.platform = config, ranks, DeviceTimer(), CpuPlatform()
        scheduling, cache = config.scheduler_config, config.cache_config
        self._vocabulary = config.model_config.vocab_size
        self.overlapped = bool(scheduling.async_scheduling)
        self.memory = MemoryLedger(self.platform)
        self.loaded = SimpleNamespace(  # type: ignore[assignment]
            rope=None,
            generates=True,
            adapted=FakeAdapters(),
            split=SimpleNamespace(vocabulary=self._vocabulary),
        )
        self.drafting = None
        self.head = self._make_head()
        num_blocks, self._block_size = cache.num_gpu_blocks_override, cache.block_size
        self.facts = StartFacts(num_blocks, 0, batch_invariant=False, kernels="", memory={})
        self.backend = StepAttention()
        self.table = BlockTable(
            [BlockPool(num_blocks)], scheduling.max_num_seqs, config.model_config.max_model_len,
            self._block_size, [FULL],
        )  # fmt: skip
        self._cached, self._drafted = (np.full(num_blocks * self._block_size, -1) for _ in range(2))
        self._latest_tokens = np.zeros(scheduling.max_num_seqs, dtype=np.int64)

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        sampled = torch.from_numpy(inputs.step.rows[inputs.sampling])
        return NO_OUTPUT._replace(rows=self._compute(self._cached, inputs), sampled=sampled)

    def draft_logits(self, inputs: ModelInputs) -> Tensor:
        return self._compute(self._drafted, inputs)

    def logits(self, output: ForwardOutput) -> Iterator[Tensor]:
        yield output.rows

    def keep(self, output: ForwardOutput, tokens: Tensor) -> None:
        self._latest_tokens[output.sampled.numpy()] = tokens.numpy()

    def run_decodes(self, count: int, draft: bool) -> None:
        """Take no time."""

    def put_adapter(self, slot: int, adapter: LowRankAdapter) -> None:
        self.loaded.adapted.digests[slot] = adapter.digest  # type: ignore[union-attr]

    def erase(self, block_ids: list[list[int]]) -> None:
        (only_pool,) = block_ids
        for cache in (self._cached, self._drafted):
            cache.reshape(-1, self._block_size)[only_pool] = -1

    @property
    def caches(self) -> list[Tensor]:
        return []

    def _compute(self, cache: IntArray, inputs: ModelInputs) -> Tensor:
        """Write a step's tokens to a cache; return the logits [n, vocabulary] of its sequences that sample."""
        step, size = inputs.step, self._block_size
        cache[step.slots[0]] = np.where(
            step.token_ids < 0, self._latest_tokens[-1 - np.minimum(step.token_ids, -1)], step.token_ids
        )
        rows = []
        for sequence in inputs.sampling:
            places = np.arange(step.contexts[sequence])
            blocks = self.table.ids[0, step.rows[sequence], places // size].astype(np.int64)
            slot = -1 if step.adapters is None else int(step.adapters[step.starts[sequence]])
            adapter = self.loaded.adapted.digests.get(slot, "")  # type: ignore[union-attr]
            seed = crc32(cache[blocks * size + places % size].tobytes() + adapter.encode())
            rows.append(np.random.default_rng(seed).normal(0, 4, self._vocabulary))
        return torch.from_numpy(np.array(rows, dtype=np.float32).reshape(-1, self._vocabulary))


class FakeAdapters:
    """A model that takes any adapter."""

    max_rank, max_bytes = 64, 1 << 20

    def __init__(self) -> None:
        self.num_weights: dict[str, int] = {}
        # By slot.
        self.digests: dict[int, str] = {}

    def check(self, adapter: LowRankAdapter) -> None:
        """Accept an adapter."""
