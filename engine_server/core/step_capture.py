"""The captured steps of one rank, and the buffers that they write."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import ModelInputs
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.graphs.captured_step import CapturedStep, StepPart
from engine_server.modeling.graphs.recording import UnrecordableError
from engine_server.modeling.graphs.step_programs import MOST_COMPARED
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.staging import Staging

if TYPE_CHECKING:
    from engine_server.core.heads.kernel_sampler import KernelSampler

logger = logging.getLogger(__name__)


class EagerStep(NamedTuple):
    """The eager step that is captured."""

    # Computes the hidden states [T, hidden] of a step of T tokens.
    forward: Callable[[StepInputs, Staged], Tensor]
    # Computes the logits [n, vocabulary] of hidden states [n, hidden].
    logits: Callable[[Tensor], Tensor]
    context: ForwardContext
    staging: Staging
    # The largest number of decodes.
    most_decodes: int
    # The largest number of tokens of a step with prompts; None: only decodes are captured.
    most_tokens: int | None = None
    # Some of the sequences have adapters.
    adapted: bool = False

    @property
    def most(self) -> int:
        return max(self.most_decodes, self.most_tokens or 0)


class Graphs(NamedTuple):
    """The captured parts of steps; the head's draw is captured by the head."""

    # Steps with prompts too, not only decodes.
    prompts: bool

    forward: CapturedStep
    logits: CapturedStep


class CaptureBuffers(NamedTuple):
    """The output buffers that captured steps of all sizes share."""

    # [largest step, hidden].
    states: Tensor
    # float32 [max_num_rows, vocabulary]: processors change it in place.
    logits: Tensor


# Tokens and context of the sequences of a step with prompts for which captured steps are compared with eager ones: a
# prompt, one that is continued, and two decodes.
COMPARED = ((40, 40), (3, 63), (1, 30), (1, 60))


class StepCapture:
    """Steps captured for some numbers of tokens, if the device and the model allow it."""

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        ranks: Communicator,
        loaded: LoadedModel,
        hidden_size: int | None = None,
    ) -> None:
        """Allocate the buffers, which captures after a sleep use again.

        hidden_size: of the states from which logits are computed; None: the model's.
        """
        self._config = config
        self._platform = platform
        self._ranks = ranks
        self._loaded = loaded
        self._buffers = self._allocate(hidden_size) if self._possible else None
        # For steps without adapters, and for those with some.
        self._graphs: dict[bool, Graphs] = {}
        # Those that were replayed last.
        self._latest: Graphs | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers."""
        return [*(self._buffers or ())]

    def capture(self, steps: Sequence[EagerStep], sampler: "KernelSampler | None") -> None:
        """Capture the sampler's kernels and a step without adapters, or one with and one without.

        Called again after a sleep.
        """
        self.release(sampler)
        if self._buffers is None:
            return
        try:
            for step in steps:
                count = step.most_decodes
                step.staging.put(self.example(step.staging, count), np.arange(count))
                self._graphs[step.adapted] = self._capture(step)
                if step.most_tokens is not None:
                    self._compare(step)
            if sampler:
                sampler.capture(self._buffers.logits)
        except RuntimeError as error:
            if self._ranks.size > 1 and not isinstance(error, UnrecordableError):
                raise  # the other ranks are inside a collective
            self.release(sampler)
            logger.warning("steps can't be captured, so they run slower: %s", error)

    def release(self, sampler: "KernelSampler | None") -> None:
        """Free the memory of the captured steps, except the buffers."""
        self._graphs, self._latest = {}, None
        if sampler:
            sampler.release_graphs()

    def size_for(self, inputs: ModelInputs) -> int | None:
        """Return the size of the captured step that can compute a step, or None."""
        graphs = self._graphs.get(inputs.step.adapters is not None)
        if graphs is None or not (inputs.has_tokens_alone if graphs.prompts else inputs.is_plain_decode):
            return None
        return graphs.forward.size_for(len(inputs.step.token_ids))

    def states(self, size: int, adapted: bool) -> Tensor:
        """Return the hidden states [largest step, hidden] of the staged step. To be called in its context.

        adapted: some of its sequences have adapters.
        """
        assert self._buffers is not None
        self._latest = self._graphs[adapted]
        self._latest.forward.replay(size)
        return self._buffers.states

    def logits(self, count: int) -> Tensor | None:
        """Return the logits [count, vocabulary] of the staged step's sequences that sample, from the latest states.

        None: no captured step computes as many.
        """
        size = None if self._latest is None else self._latest.logits.size_for(count)
        if self._latest is None or size is None:
            return None
        assert self._buffers is not None
        self._latest.logits.replay(size)
        return self._buffers.logits[:count]

    @property
    def _possible(self) -> bool:
        """True if steps are captured: on a GPU not with a stretched rope, which needs lengths from the host."""
        return (
            self._platform.captures_graphs
            and self._loaded.generates
            and not self._config.model_config.enforce_eager
            and (self._loaded.rope is None or not self._platform.asynchronous)
        )

    def _allocate(self, hidden_size: int | None) -> CaptureBuffers:
        scheduling, split = self._config.scheduler_config, self._loaded.split
        dtype, device = self._loaded.model.dtype, self._platform.device
        rows = tokens = scheduling.max_num_rows
        if self._platform.captures_prompts:
            rows = max(rows, MOST_COMPARED)
            tokens = max(rows, scheduling.max_num_batched_tokens)
        states = torch.zeros(tokens, hidden_size or split.hidden_size, dtype=dtype, device=device)
        logits = torch.zeros(rows, split.vocabulary, device=device)
        return CaptureBuffers(states, logits)

    def _capture(self, step: EagerStep) -> Graphs:
        assert self._buffers is not None
        states, logits = self._buffers
        return Graphs(
            step.most_tokens is not None,
            self._platform.capture(self._part("hidden states", step, self._run_forward, step.most, states)),
            self._platform.capture(self._part("logits", step, self._run_logits, step.most_decodes, logits)),
        )

    def _part(
        self, name: str, step: EagerStep, run: Callable[[EagerStep, int], None], most: int, output: Tensor
    ) -> StepPart:
        backend = step.context.backend

        def compute(size: int) -> None:
            run(step, size)

        def context(size: int) -> AbstractContextManager[None]:
            inputs = step.staging.attach(
                self.example(step.staging, size, step.adapted), step.staging.decodes(size)
            )
            return step.context.replay(inputs)

        def erase() -> None:
            self._erase(step, step.most_decodes)

        return StepPart(name, compute, context, most, step.most_decodes, output, backend.step_tensors, erase)

    def _erase(self, step: EagerStep, tokens: int) -> None:
        """Zero what an example of that many tokens has written to the cache."""
        step.context.backend.erase([*range(-(-tokens // self._config.cache_config.block_size))])

    @torch.inference_mode()
    def _compare(self, step: EagerStep) -> None:
        """Compare the captured step with the eager one where sequences have several tokens.

        Raises UnrecordableError if they differ. Models with a shorter context are compared by decodes alone.
        """
        assert self._buffers is not None
        lengths, contexts = np.array(COMPARED).T
        inputs = self._example(step.staging, lengths, contexts, step.adapted)
        count, graphs = len(inputs.token_ids), self._graphs[step.adapted]
        longest = self._config.model_config.max_model_len
        if contexts.max() > longest or len(COMPARED) > step.most_decodes:
            return
        if graphs.forward.size_for(count) is None:
            return
        staged = step.staging.put(inputs, np.arange(len(COMPARED)))
        expected = step.forward(inputs, staged).clone()
        self._erase(step, count)
        with step.context.replay(step.staging.attach(inputs, staged)):
            graphs.forward.replay(count)
        self._erase(step, count)
        if not torch.equal(self._buffers.states[:count], expected):
            raise UnrecordableError("the program's results for a step with prompts differ from the model's")

    @torch.inference_mode()
    def _run_forward(self, step: EagerStep, size: int) -> None:
        """Compute the hidden states of the first `size` staged sequences, to be captured."""
        assert self._buffers is not None
        states = step.forward(self.example(step.staging, size, step.adapted), step.staging.decodes(size))
        self._buffers.states[:size].copy_(states)

    @torch.inference_mode()
    def _run_logits(self, step: EagerStep, size: int) -> None:
        """Compute the logits of the first `size` sequences that sample, to be captured."""
        assert self._buffers is not None
        staged = step.staging.decodes(size)
        states, slots = self._buffers.states[:size], staged.adapters
        if step.most_tokens is not None:  # in a step with prompts their states are anywhere
            states = self._buffers.states.index_select(0, staged.logit_rows)
            slots = step.staging.decodes(step.most).adapters.index_select(0, staged.logit_rows)
        with self._loaded.apply_adapters(slots if step.adapted else None):
            self._buffers.logits[:size].copy_(step.logits(states))

    def example(self, staging: Staging, count: int, adapted: bool = False) -> StepInputs:
        """Return a step of decodes with different contexts. Some may share a row of the block table, as drafts do.

        adapted: all have the first adapter.
        """
        rows = np.arange(count)
        contexts = 1 + 37 * rows % self._config.model_config.max_model_len
        return self._example(staging, np.ones_like(rows), contexts, adapted)

    def _example(self, staging: Staging, lengths: IntArray, contexts: IntArray, adapted: bool) -> StepInputs:
        """Return a step with sequences of some tokens and contexts, written to the cache's first slots."""
        starts, tokens = np.cumsum(lengths) - lengths, np.arange(lengths.sum())
        sequences = np.repeat(np.arange(len(lengths)), lengths)
        return StepInputs(
            tokens % self._loaded.split.vocabulary,
            tokens - starts[sequences] + (contexts - lengths)[sequences],
            [tokens.copy() for _ in staging.tables],
            starts,
            lengths,
            contexts,
            [],
            np.arange(len(lengths)) % staging.rows,
            adapters=np.zeros_like(tokens) if adapted else None,
        )
