"""Steps on all ranks: the first rank's runner in this process, the others' in worker processes."""

import pkgutil
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.distributed.ranks import Ranks
from engine_server.core.distributed.worker_processes import start_workers
from engine_server.core.forward_output import NO_OUTPUT
from engine_server.core.model_inputs import draft_inputs, model_inputs
from engine_server.core.runner import CollectiveCalls, OnPhase, Runner
from engine_server.core.sampling.head import HiddenStates, NoResults, Pending
from engine_server.core.sampling.sampler import Sampler
from engine_server.core.sampling.token_masks import TokenMasks
from engine_server.core.scheduling.batch import Batch, num_tokens, sampled_part
from engine_server.core.scheduling.rows import Rows
from engine_server.core.scheduling.step_result import StepReport, StepResult
from engine_server.modeling.attention.interface import IntArray
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.device.timing import elapsed_seconds

# Number of times that each decode step is measured, and the seconds after which no further step is.
MEASUREMENTS = 3
MEASURING_SECONDS = 1.0


class Executor:
    """The steps of the runners of all ranks.

    The head, a sampler or a pooler, belongs to the first rank; the others take part in its logits.

    ranks: what all of them do together; first: the first rank's runner.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_phase: OnPhase,
        on_death: Callable[[str], None] | None = None,
        progress: ProgressClock | None = None,
    ) -> None:
        """Start the workers and the first rank's runner; all of them load the model.

        on_phase: called with the name and the duration in seconds of each phase of the start.
        on_death: called in another thread with the reason if a worker ends, since a step may be waiting for it.
        progress: ticks at every layer.
        """
        runner_class: type[Runner] = pkgutil.resolve_name(config.parallel_config.worker_cls)
        workers = start_workers(config, on_death)
        self.first = runner_class(config, workers.communicator, on_phase, progress)
        self.ranks = Ranks(self.first, workers)
        self._generates = config.model_config.pooling is None
        self._max_num_rows = config.scheduler_config.max_num_rows
        self._collected = StepReport()

    @property
    def rows(self) -> Rows:
        """The first rank's head, which keeps by row what it needs of requests."""
        assert self.first.head is not None
        return self.first.head

    def forward(self, batch: Batch) -> HiddenStates:
        """Launch one flat forward over the step's tokens."""
        begun = self.first.platform.record_event(timed=True)
        if not batch:
            return HiddenStates(batch, [], NO_OUTPUT, begun)
        inputs, chunks = model_inputs(batch, self.first.table, self.first.stretched)
        return HiddenStates(batch, chunks, self.ranks.run(CollectiveCalls.forward, inputs), begun)

    def head(self, states: HiddenStates, masks: TokenMasks | None) -> Pending:
        """Launch logits processors and sampling, or pooling, of the latest forward."""
        pending: Pending = NoResults()
        output = states.output
        if len(output.rows) or output.prompt_rows:
            assert self.first.head is not None
            if self._generates:
                self.ranks.run_on_others(CollectiveCalls.join_head, output.number)
            pending, tokens = self.first.head.launch(states, self.first.logits(output), masks)
            if tokens is not None:
                self.first.keep(output, tokens)
        return PendingStep(self, states, pending, self.first.platform.record_event(timed=True))

    def note(self, report: StepReport) -> None:
        """Keep the report of a step that was collected."""
        self._collected = report

    def take_report(self) -> StepReport:
        """Return the report of the step that was collected since the last call."""
        report, self._collected = self._collected, StepReport()
        return report

    def draft_logits(self, batch: Batch, sources: IntArray | None = None) -> Tensor:
        """Compute a step of the draft model or head; return the logits [n, vocabulary] of the parts that sample.

        sources: for a draft head, [T], the index of the hidden state before each token: among the tokens of the latest
        step, then among the parts that sampled in the head's own.
        """
        return self.ranks.run(CollectiveCalls.draft_logits, draft_inputs(batch, self.first.table, sources))

    def draft_tokens(self, batch: Batch, sources: IntArray | None = None) -> list[int]:
        """Compute a step of the draft model or head; return the token that each part that samples would take.

        sources: as of `draft_logits`.
        """
        logits = self.draft_logits(batch, sources)
        assert isinstance(self.first.head, Sampler)
        return self.first.head.likely_tokens(sampled_part(batch), logits)

    def decode_seconds(self, draft: bool = False) -> dict[int, float]:
        """Measure steps of 1, 2, 4, ... decodes with short contexts; return the seconds by the number of decodes.

        It is to be called while the cache is blank, and leaves it so. draft: of the draft model, or of the draft head.
        """
        pools = self.first.table.pools
        most = min(self._max_num_rows, *(pool.num_blocks for pool in pools))
        counts = [1 << power for power in range(most.bit_length())]
        measured: dict[int, float] = {}
        begun = time.perf_counter()
        for count in counts:
            if time.perf_counter() - begun > MEASURING_SECONDS:
                break
            measured[count] = min(self._seconds_of_decodes(count, draft) for _ in range(MEASUREMENTS))
        self.ranks.run(CollectiveCalls.erase, [[*range(max(measured))]] * len(pools))
        return measured

    def _seconds_of_decodes(self, count: int, draft: bool) -> float:
        started = time.perf_counter()
        self.ranks.run(CollectiveCalls.run_decodes, count, draft)
        return time.perf_counter() - started

    def collective_rpc(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every rank's runner; return the results, by rank. Raises RuntimeError if any fails."""
        outcomes = self.ranks.run(CollectiveCalls.collective_rpc, method, args, kwargs)
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(outcomes) if error is not None]
        if errors:
            raise RuntimeError("; ".join(errors))
        return [value for value, _ in outcomes]


class PendingStep:
    """A step's pending results, whose collection gives the executor the step's report."""

    def __init__(
        self, executor: Executor, states: HiddenStates, pending: Pending, ended: torch.Event | None
    ) -> None:
        """ended: a mark in the device's work after the step."""
        self._executor = executor
        self._num_tokens, self._replayed = num_tokens(states.batch), states.output.replay is not None
        self._pending = pending
        self._begun, self._ended = states.begun, ended

    def collect(self) -> list[StepResult]:
        results = self._pending.collect()
        seconds = elapsed_seconds(self._begun, self._ended)
        self._executor.note(StepReport(self._num_tokens, self._replayed, seconds))
        return results
