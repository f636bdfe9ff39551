"""The captured steps of one rank, and the buffers that they write."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.replay import CapturedForward, Graphs, Replay
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.graphs.captured_step import StepPart
from engine_server.modeling.graphs.recording import UnrecordableError
from engine_server.modeling.graphs.staging import Staging, StepShape
from engine_server.modeling.graphs.step_programs import MOST_COMPARED
from engine_server.modeling.platform.interface import Platform

if TYPE_CHECKING:
    from engine_server.core.sampling.kernel_sampler import KernelSampler

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


class CaptureBuffers(NamedTuple):
    """The output buffers that captured steps of all sizes share."""

    # [largest step, hidden].
    states: Tensor
    # float32 [max_num_rows, vocabulary]: processors change it in place.
    logits: Tensor


# Tokens and context of the sequences of a step with prompts for which captured steps are compared with eager ones: a
# prompt, one that is continued, and two decodes.
COMPARED = ((40, 40), (3, 63), (1, 30), (1, 60))
# Tokens of the largest step with prompts that is captured, where each size takes a graph of its own: with more, the
# device works for longer than the host takes to launch the step. And of the smallest: fewer tokens take as long.
MOST_MIXED, LEAST_MIXED = 512, 16


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

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers."""
        return [*(self._buffers or ())]

    @property
    def most_tokens(self) -> int:
        """The most tokens of a captured step; 0 if none is captured."""
        return 0 if self._buffers is None else len(self._buffers.states)

    @property
    def bytes(self) -> int:
        """The memory of the captured parts, except the buffers."""
        steps = {
            id(step): step
            for decodes, mixed, logits in self._graphs.values()
            for step in (decodes.step, logits, *(() if mixed is None else (mixed.step,)))
        }
        return sum(step.bytes for step in steps.values())

    def capture(self, steps: Sequence[EagerStep], sampler: "KernelSampler | None") -> None:
        """Capture the sampler's kernels and a step without adapters, or one with and one without.

        Called again after a sleep.
        """
        self.release(sampler)
        if self._buffers is None:
            return
        try:
            for step in steps:
                self._graphs[step.adapted] = self._capture(step)
                if self._platform.captures_any_step and step.most_tokens is not None:
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
        self._graphs = {}
        if sampler:
            sampler.release_graphs()

    def replay_for(self, inputs: ModelInputs) -> Replay | None:
        """Return the captured step that can compute a step, or None."""
        graphs = self._graphs.get(inputs.step.adapters is not None)
        if graphs is None or not inputs.has_tokens_alone:
            return None
        forward = graphs.decodes if inputs.is_plain_decode else graphs.mixed
        size = forward and forward.step.size_for(len(inputs.step.token_ids))
        if forward is None or size is None:
            return None
        return Replay(graphs, forward.step, size, forward.shape and forward.shape(size))

    def states(self, replay: Replay) -> Tensor:
        """Return the hidden states [largest step, hidden] of the staged step. To be called in its context."""
        assert self._buffers is not None
        replay.forward.replay(replay.size)
        return self._buffers.states

    def logits(self, replay: Replay, count: int) -> Tensor | None:
        """Return the logits [count, vocabulary] of the staged step's sequences that sample, after its `states`.

        None: no captured step computes as many.
        """
        size = replay.graphs.logits.size_for(count)
        if size is None:
            return None
        assert self._buffers is not None
        replay.graphs.logits.replay(size)
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
        if self._platform.captures_any_step:
            rows = max(rows, MOST_COMPARED)
            tokens = max(rows, scheduling.max_num_batched_tokens)
        else:
            tokens = max(rows, min(MOST_MIXED, scheduling.max_num_batched_tokens))
        states = torch.zeros(tokens, hidden_size or split.hidden_size, dtype=dtype, device=device)
        logits = torch.zeros(rows, split.vocabulary, device=device)
        return CaptureBuffers(states, logits)

    def _capture(self, step: EagerStep) -> Graphs:
        if self._platform.captures_any_step:
            size = max(step.most_decodes, step.most_tokens or 0)
            part = self._forward_part("hidden states", step, StepShape.of_decodes, size)
            decodes = CapturedForward(self._platform.capture(part), None)
            mixed = None if step.most_tokens is None else decodes
        else:
            part = self._forward_part("decodes", step, StepShape.of_decodes, step.most_decodes)
            decodes, mixed = CapturedForward(self._platform.capture(part), StepShape.of_decodes), None
            if step.most_tokens is not None:
                shape = step.staging.mixed_shape
                part = self._forward_part("steps with prompts", step, shape, step.most_tokens)
                mixed = CapturedForward(self._platform.capture(replace(part, least=LEAST_MIXED)), shape)
        return Graphs(decodes, mixed, self._platform.capture(self._logits_part(step)))

    def _forward_part(
        self, name: str, step: EagerStep, shape: Callable[[int], StepShape], most: int
    ) -> StepPart:
        """Return the hidden states of steps of the shapes of up to `most` tokens."""
        assert self._buffers is not None
        output = self._buffers.states

        @torch.inference_mode()
        def run(size: int) -> None:
            example = self.example(step.staging, size, step.adapted)
            states = step.forward(example, step.staging.views(shape(size), size))
            output[:size].copy_(states)

        return self._part(name, step, shape, run, most, output)

    def _logits_part(self, step: EagerStep) -> StepPart:
        """Return the logits of sequences that sample, whose hidden states lie anywhere in a step with prompts."""
        assert self._buffers is not None
        states_of_step, output = self._buffers

        @torch.inference_mode()
        def run(size: int) -> None:
            staged = step.staging.decodes(size)
            states, slots = states_of_step[:size], staged.adapters
            if step.most_tokens is not None:
                states = states_of_step.index_select(0, staged.logit_rows)
                slots = step.staging.decodes(len(states_of_step)).adapters.index_select(0, staged.logit_rows)
            with self._loaded.apply_adapters(slots if step.adapted else None):
                output[:size].copy_(step.logits(states))

        return self._part("logits", step, StepShape.of_decodes, run, step.most_decodes, output)

    def _part(
        self,
        name: str,
        step: EagerStep,
        shape: Callable[[int], StepShape],
        run: Callable[[int], None],
        most: int,
        output: Tensor,
    ) -> StepPart:
        staging, backend = step.staging, step.context.backend

        def prepare(size: int) -> None:
            count = min(size, step.most_decodes)
            staging.put(self.example(staging, count), np.arange(count), shape(size))

        def context(size: int) -> AbstractContextManager[None]:
            example = self.example(staging, size, step.adapted)
            return step.context.replay(staging.attach(example, staging.decodes(size)))

        def erase() -> None:
            self._erase(step, step.most_decodes)

        return StepPart(
            name=name, prepare=prepare, run=run, context=context, most=most, most_decodes=step.most_decodes,
            output=output, step_tensors=backend.step_tensors, erase=erase,
        )  # fmt: skip

    def _erase(self, step: EagerStep, tokens: int) -> None:
        """Zero what an example of that many tokens has written to the cache."""
        step.context.backend.erase_first(-(-tokens // self._config.cache_config.block_size))

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
        if graphs.decodes.step.size_for(count) is None:
            return
        staged = step.staging.put(inputs, np.arange(len(COMPARED)))
        expected = step.forward(inputs, staged).clone()
        self._erase(step, count)
        with step.context.replay(step.staging.attach(inputs, staged)):
            graphs.decodes.step.replay(count)
        self._erase(step, count)
        if not torch.equal(self._buffers.states[:count], expected):
            raise UnrecordableError("the program's results for a step with prompts differ from the model's")

    def example(self, staging: Staging, count: int, adapted: bool = False) -> StepInputs:
        """Return a step of decodes with different contexts. Some may share a row of the block table, as drafts do.

        adapted: all have the first adapter.
        """
        rows = np.arange(count)
        contexts = 1 + 37 * rows % self._config.model_config.max_model_len
        return self._example(staging, np.ones_like(rows), contexts, adapted)

    def _example(self, staging: Staging, lengths: IntArray, contexts: IntArray, adapted: bool) -> StepInputs:
        """Return a step with sequences of some tokens and contexts, written to the cache's first slots."""
        tokens = np.arange(lengths.sum())
        return StepInputs.of(
            np.arange(len(lengths)) % staging.rows,
            lengths,
            contexts,
            len(staging.tables),
            token_ids=tokens % self._loaded.split.vocabulary,
            slots=tokens,
            adapters=np.zeros_like(lengths) if adapted else None,
        )
