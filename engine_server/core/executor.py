"""Steps on all ranks: the first rank's runner in this process, the others' in worker processes."""

import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine_server.config import EngineConfig
from engine_server.core.distributed.worker_processes import start_workers
from engine_server.core.heads.head import HiddenStates, NoResults, Pending
from engine_server.core.heads.sampler import Sampler
from engine_server.core.logits.token_masks import TokenMasks
from engine_server.core.model_inputs import draft_inputs, model_inputs
from engine_server.core.model_runner import ModelRunner, OnPhase
from engine_server.core.scheduling.batch import Batch, num_tokens, sampled_part
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.rows import Rows
from engine_server.core.scheduling.step_result import StepReport, StepResult
from engine_server.modeling.adapters.peft_folder import AdapterError, LowRankAdapter, read_low_rank_adapter
from engine_server.modeling.attention.interface import IntArray
from engine_server.modeling.device_time import elapsed_seconds
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.progress import ProgressClock
from engine_server.requests.adapters import LoRARequest

# Number of times that each decode step is measured, and the seconds after which no further step is.
MEASUREMENTS = 3
MEASURING_SECONDS = 1.0


class Executor:
    """The runners of all ranks, which run the same calls in the same order, so that their collectives match.

    The head, a sampler or a pooler, belongs to the first rank; the others take part in its logits.
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
        runner_class: type[ModelRunner] = pkgutil.resolve_name(config.parallel_config.worker_cls)
        self._workers = start_workers(config, on_death)
        self.runner = runner_class(config, self._workers.communicator, on_phase, progress)
        # The latest step, whose hidden states a draft head continues.
        self.batch: Batch = []
        self._begun: torch.Event | None = None
        self._collected = StepReport()

    @property
    def num_ranks(self) -> int:
        return self._workers.communicator.size

    @property
    def rows(self) -> Rows:
        """The first rank's head, which keeps by row what it needs of requests."""
        assert self.runner.head is not None
        return self.runner.head

    @property
    def platform(self) -> Platform:
        """The first rank's device and its kernels."""
        return self.runner.platform

    def forward(self, batch: Batch) -> HiddenStates:
        """Launch one flat forward over the step's tokens."""
        self.batch = batch
        self._begun = self.platform.record_event(timed=True)
        if not batch:
            return HiddenStates(batch, torch.zeros(0), [], [], captured=False)
        inputs, chunks = model_inputs(batch, self.runner.table, self.runner.loaded.rope is not None)
        self._workers.broadcast("forward", inputs)
        output = self.runner.forward(inputs)
        return HiddenStates(batch, output.rows, output.prompt_rows, chunks, output.captured)

    def head(self, states: HiddenStates, masks: TokenMasks | None) -> Pending:
        """Launch logits processors and sampling, or pooling, of the latest forward."""
        pending: Pending = NoResults()
        if len(states.rows) or states.prompt_rows:
            assert self.runner.head is not None
            if self.runner.loaded.generates:
                self._workers.broadcast("join_head")
            pending = self.runner.head.launch(states, masks)
        return PendingStep(self, states, pending, self._begun, self.platform.record_event(timed=True))

    def note(self, report: StepReport) -> None:
        """Keep the report of a step that was collected."""
        self._collected = report

    def take_report(self) -> StepReport:
        """Return the report of the step that was collected since the last call."""
        report, self._collected = self._collected, StepReport()
        return report

    def draft_logits(self, batch: Batch, sources: IntArray | None = None) -> torch.Tensor:
        """Compute a step of the draft model or head; return the logits [n, vocabulary] of the parts that sample.

        sources: for a draft head, [T], the index of the hidden state before each token: among the tokens of the latest
        step, then among the parts that sampled in the head's own.
        """
        inputs = draft_inputs(batch, self.runner.table, sources)
        self._workers.broadcast("draft_logits", inputs)
        return self.runner.draft_logits(inputs)

    def draft_tokens(self, batch: Batch, sources: IntArray | None = None) -> list[int]:
        """Compute a step of the draft model or head; return the token that each part that samples would take.

        sources: as of `draft_logits`.
        """
        logits = self.draft_logits(batch, sources)
        assert isinstance(self.runner.head, Sampler)
        return self.runner.head.likely_tokens(sampled_part(batch), logits)

    def rope_regime(self, request: Request) -> int:
        """Return the number that a request's keys depend on besides its tokens."""
        return self.runner.loaded.rope_regime(request)

    def read_adapter(self, lora: LoRARequest) -> LowRankAdapter:
        """Read an adapter. Raises AdapterError if it doesn't fit the model. It may run in any thread."""
        adapted = self.runner.loaded.adapted
        if adapted is None:
            raise AdapterError("the weights are unloaded")
        folder = Path(lora.lora_path)
        adapter = read_low_rank_adapter(folder, adapted.max_rank, adapted.max_bytes, adapted.num_weights)
        adapted.check(adapter)
        return adapter

    def put_adapter(self, slot: int, adapter: LowRankAdapter) -> None:
        """Copy an adapter, which was checked, to a slot."""
        self._workers.broadcast("put_adapter", slot, adapter)
        self.runner.put_adapter(slot, adapter)

    def erase(self, block_ids: list[list[int]]) -> None:
        """Zero the content of blocks of each pool."""
        self._workers.broadcast("erase", block_ids)
        self.runner.erase(block_ids)

    def sleep(self, level: int) -> None:
        """Free the cache's memory and the weights': at level 1 the host keeps a copy, at level 2 none is kept."""
        self._workers.broadcast("sleep", level)
        self.runner.sleep(level)

    def wake(self, tag: str, level: int) -> None:
        """Allocate the "kv_cache" again, zeroed, or restore the "weights", which sleep at `level`."""
        self._workers.broadcast("wake", tag, level)
        self.runner.wake(tag, level)

    def capture_graphs(self) -> None:
        """Capture decode steps again, after the cache and the weights are awake."""
        self._workers.broadcast("capture_graphs")
        self.runner.capture_graphs()

    def decode_seconds(self, draft: bool = False) -> dict[int, float]:
        """Measure steps of 1, 2, 4, ... decodes with short contexts; return the seconds by the number of decodes.

        It is to be called while the cache is blank, and leaves it so. draft: of the draft model, or of the draft head.
        """
        pools = self.runner.table.pools
        most = min(self.runner.config.scheduler_config.max_num_rows, *(pool.num_blocks for pool in pools))
        counts = [1 << power for power in range(most.bit_length())]
        measured: dict[int, float] = {}
        begun = time.perf_counter()
        for count in counts:
            if time.perf_counter() - begun > MEASURING_SECONDS:
                break
            measured[count] = min(self._seconds_of_decodes(count, draft) for _ in range(MEASUREMENTS))
        self.erase([[*range(max(measured))]] * len(pools))
        return measured

    def _seconds_of_decodes(self, count: int, draft: bool) -> float:
        started = time.perf_counter()
        self._workers.broadcast("run_decodes", count, draft)
        self.runner.run_decodes(count, draft)
        return time.perf_counter() - started

    def collective_rpc(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every rank's runner; return the results, by rank. Raises RuntimeError if any fails."""
        self._workers.broadcast("collective_rpc", method, args, kwargs)
        outcomes = self.runner.collective_rpc(method, args, kwargs)
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(outcomes) if error is not None]
        if errors:
            raise RuntimeError("; ".join(errors))
        return [value for value, _ in outcomes]

    def check(self, patience: float = 0.0) -> None:
        """Raise EngineDeadError if a worker has ended, or ends within `patience` seconds."""
        self._workers.check(patience)


class PendingStep:
    """A step's pending results, whose collection gives the executor the step's report."""

    def __init__(
        self,
        executor: Executor,
        states: HiddenStates,
        pending: Pending,
        begun: torch.Event | None,
        ended: torch.Event | None,
    ) -> None:
        """`begun` and `ended` are marks in the device's work."""
        self._executor = executor
        self._num_tokens, self._replayed = num_tokens(states.batch), states.captured
        self._pending = pending
        self._begun, self._ended = begun, ended

    def collect(self) -> list[StepResult]:
        results = self._pending.collect()
        seconds = elapsed_seconds(self._begun, self._ended)
        self._executor.note(StepReport(self._num_tokens, self._replayed, seconds))
        return results
