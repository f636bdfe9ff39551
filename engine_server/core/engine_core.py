"""The engine core: the step and its loop."""

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from engine_server.config import EngineConfig
from engine_server.core.adapters.adapter_pool import AdapterPool
from engine_server.core.adapters.adapter_pools import AdapterPools
from engine_server.core.control_operations import ControlOperations
from engine_server.core.debug_state import DebugState, debug_state
from engine_server.core.encoding.picture_rows import NO_PICTURES, PictureRows
from engine_server.core.executor import Executor
from engine_server.core.runner import CollectiveCalls
from engine_server.core.sampling.grammars import Grammars
from engine_server.core.sampling.head import Pending
from engine_server.core.sampling.prompt_logprobs import take_parts
from engine_server.core.scheduling.batch import Batch, has_drafts, num_tokens
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.span import Span
from engine_server.core.speculation.speculator import make_speculator
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.adapters.prompt_folder import read_prompt_adapter
from engine_server.modeling.device.progress import ProgressClock
from engine_server.requests.adapters import PromptAdapterRequest
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    FrontEndMessage,
    PictureInputs,
    PromptLogprobsPart,
    RequestStep,
    StepOutputs,
    Vocabulary,
)

# Seconds between queries of a GPU's free memory, which stall the driver briefly.
MEMORY_SECONDS = 1.0
# Seconds to wait for another rank's end to be detected, in case it made a step fail.
BLAME_SECONDS = 2.0
logger = logging.getLogger(__name__)


class StepInFlight(NamedTuple):
    """A launched step whose results have not been collected."""

    batch: Batch
    pending: Pending


class EngineCore:
    """The core of an engine, which runs requests on the device step by step. All calls must come from one thread."""

    def __init__(
        self,
        config: EngineConfig,
        on_phase: Callable[[str, float], None],
        on_death: Callable[[str], None] | None = None,
        progress: ProgressClock | None = None,
    ) -> None:
        """Load the model and allocate the KV cache.

        on_phase: called with the name and the duration in seconds of each phase of the start.
        on_death: called in another thread with the reason if another rank ends, since a step may be waiting for it.
        progress: ticks at every layer and every step.
        """
        self.progress = progress or ProgressClock()
        self.executor = Executor(config, on_phase, on_death, self.progress)
        self._first = self.executor.first
        self.facts = self._first.facts
        pooling = config.model_config.pooling
        self.adapters = adapter_pools(config, self.executor)
        self.scheduler = Scheduler(
            config.scheduler_config,
            self._first.table,
            config.model_config.eos_token_ids,
            config.cache_config.enable_prefix_caching and not pooling,  # pooling needs every token's state
            lambda block_ids: self.executor.ranks.run(CollectiveCalls.erase, block_ids),
            self._first.rope_regime if self._first.stretched else None,
            self.adapters,
            self.executor.rows,
            picture_rows(config, self.executor),
        )
        self.grammars = Grammars(
            config.model_config.eos_token_ids, config.model_config.vocab_size, self._first.platform
        )
        self.speculator = make_speculator(config, self.executor)
        self.operations = ControlOperations(config, self.executor, self.scheduler, self.adapters)
        self.overlapped = self._first.overlapped
        self._in_flight: StepInFlight | None = None
        # The batch of the latest step, which may not have been launched.
        self._batch: Batch = []
        # Requests with log-probabilities of their prompts.
        self._reporting: list[GenerationRequest] = []
        # Memory statistics, and the time of the step in which they were queried.
        self._memory: dict[str, int] = {}
        self._memory_taken = -math.inf

    def handle(self, message: FrontEndMessage) -> CallResult | None:
        """Apply a message to the scheduler or run the call in it; return the result of a call if it has one yet."""
        match message:
            case Call():
                return self.operations.run(message)
            case AddRequest():
                for request in Request.from_message(message):
                    self.grammars.open(request)
                    request.adapters = self.adapters.open(message.lora, message.prompt_adapter)
                    self.scheduler.add(request)
                    if isinstance(request, GenerationRequest) and request.awaits_prompt_logprobs:
                        self._reporting.append(request)
            case PictureInputs():
                asking = self.scheduler.requests.get(message.request_id)
                if asking is not None and asking.pictures is not None:
                    self.scheduler.pictures.receive(asking.pictures, message)
            case Vocabulary():
                self.scheduler.eos_token_ids = frozenset(message.eos_token_ids)
                self.grammars.load(message)
            case AbortRequests(request_ids):
                self.scheduler.abort(request_ids)
        return None

    @property
    def has_work(self) -> bool:
        if self._in_flight is not None:
            return True
        return self.scheduler.has_work and not self.operations.halted

    def idle(self) -> None:
        """Start what waiting requests need, while there is no step to compute."""
        self.progress.tick()
        self.scheduler.read_adapters()

    def step(self) -> list[RequestStep]:
        """Compute one step of the running requests, and return the result of each."""
        batch = self._batch = self.scheduler.schedule()  # requests and numbers of tokens, counted as computed
        states = self.executor.forward(batch)  # one flat forward, launched and not awaited
        masks = self.grammars.fill(batch)  # host work while the device computes
        pending = self.executor.head(states, masks)  # logits processors and sampling, or pooling
        # k >= 1 tokens, a vector or an error for each request
        return self.scheduler.update(batch, pending.collect())

    def outputs(self) -> StepOutputs:
        """Compute a step if there is work; return its results with the state after it."""
        self.progress.tick()
        started = time.perf_counter()
        self._batch = []
        in_flight = self._in_flight
        self._first.timer.take()
        self.scheduler.read_adapters()
        steps = self.scheduler.expire() + self.scheduler.fail_unprepared()
        if self.has_work:
            steps += self._overlapped_step() if self.overlapped else self._guarded_step()
        self.executor.ranks.check()  # the results of a collective that was aborted are arbitrary
        if started - self._memory_taken > MEMORY_SECONDS or not self.has_work:
            self._memory = self._first.platform.memory_stats(self._first.caches)
            self._memory_taken = started
        seconds, waited = time.perf_counter() - started, self._first.timer.take()
        if not self.overlapped:
            self.scheduler.observe(self._batch, seconds)
        elif in_flight is not None:  # which was awaited, while the latest step was only launched
            self.scheduler.observe(in_flight.batch, seconds)
        if self.speculator is not None and self._batch:
            self.speculator.observe(self._batch)
            if self.overlapped:
                self.speculator.observe_host(seconds - waited)
        report = self.executor.take_report()
        launched_or_collected = bool(self._batch or report.num_tokens)
        stats = msgspec.structs.replace(
            self.scheduler.stats(),
            halted=self.operations.halted,
            sleep_level=self.operations.sleep_level,
            num_tokens=report.num_tokens,
            step_seconds=seconds if launched_or_collected else 0.0,
            host_seconds=seconds - waited if launched_or_collected else 0.0,
            device_seconds=report.device_seconds or waited,
            replayed=report.replayed,
            **self._memory,
        )
        return StepOutputs(steps, stats)

    def prompt_logprobs(self) -> Iterator[PromptLogprobsPart]:
        """Yield the prompts' log-probabilities that were computed since the last call, in small parts.

        To be sent before the outputs of the step that computed them.
        """
        for request in self._reporting:
            yield from take_parts(request)
        self._reporting = [
            one for one in self._reporting if one.awaits_prompt_logprobs and one in self.scheduler
        ]

    def debug_state(self) -> DebugState:
        """Return a copy of the core's state, for tests and bug reports."""
        return debug_state(self.scheduler, self._in_flight is not None, self._first.attention)

    def check_integrity(self) -> None:
        """Assert that requests, rows and blocks agree between two steps, for tests."""
        check_integrity(self.scheduler)

    def _guarded_step(self) -> list[RequestStep]:
        """Propose drafts and compute a step; if that fails, end or requeue its requests and keep the others."""
        self._draft()
        try:
            return self.step()
        except Exception as error:
            return self._recover(self._batch, error)

    def _draft(self) -> None:
        """Give running requests drafts for the next step. Without them nothing is lost, so a failure ends drafting."""
        if self.speculator is None:
            return
        try:
            with self._first.timer.measure():
                self.speculator.propose(self.scheduler.running)
        except Exception as error:
            if isinstance(error, torch.AcceleratorError) or self.executor.ranks.size > 1:
                raise
            logger.error("drafting failed, and the engine goes on without drafts", exc_info=error)
            self.speculator = None

    def _overlapped_step(self) -> list[RequestStep]:
        """Launch the next step before collecting the results of the one in flight: `step` in another order.

        Drafts continue the latest tokens, so if any are wanted, the results come first.
        """
        steps: list[RequestStep] = []
        previous, self._in_flight = self._in_flight, None
        if not self.operations.halted and self._drafts_need_results(previous):
            steps += self._finish(previous)
            previous = None
            self._draft()
        batch = self._batch = [] if self.operations.halted else self.scheduler.schedule()
        if batch:
            try:
                states = self.executor.forward(batch)
                if self.scheduler.needs_results(batch):
                    steps += self._finish(previous)
                    previous = None
                masks = self.grammars.fill(batch)
                self._in_flight = StepInFlight(batch, self.executor.head(states, masks))
            except Exception as error:
                steps += self._recover(batch, error)
        return steps + self._finish(previous)

    def _drafts_need_results(self, step: StepInFlight | None) -> bool:
        """Return True if the step in flight verifies drafts, or drafts for the next one are wanted."""
        if step is None or has_drafts(step.batch):
            return True
        return self.speculator is not None and self.speculator.needs_results(self.scheduler.running)

    def _finish(self, step: StepInFlight | None) -> list[RequestStep]:
        """Collect the results of a step in flight."""
        if step is None:
            return []
        try:
            results = step.pending.collect()
        except Exception as error:
            return self._fail(step.batch, error)
        return self.scheduler.update(step.batch, results)

    def _recover(self, batch: Batch, error: Exception) -> list[RequestStep]:
        """Requeue the latest batch in smaller steps if it ran out of memory, else end its requests."""
        if not isinstance(error, torch.OutOfMemoryError) or self.executor.ranks.size > 1:
            return self._fail(batch, error)
        traceback.clear_frames(error.__traceback__)  # they hold what was computed
        self._first.platform.release_cached_memory()
        logger.warning("a step of %d tokens ran out of memory: %s", num_tokens(batch), error)
        return self.scheduler.retry(batch, str(error))

    def _fail(self, batch: Batch, error: Exception) -> list[RequestStep]:
        """End a batch whose step failed as a whole: any of its requests may be the cause, and would fail again.

        The model and all other requests are unchanged, so the core keeps running, unless its device has failed or
        there are several ranks, which may now be at different steps.
        """
        if isinstance(error, torch.AcceleratorError) or self.executor.ranks.size > 1 or not batch:
            self.executor.ranks.check(BLAME_SECONDS)
            raise error
        self._first.platform.synchronize()  # raises AcceleratorError if the device has failed
        logger.error("a step of %d requests failed", len(batch), exc_info=error)
        message = f"{type(error).__name__}: {error}"
        return [
            self.scheduler.fail(scheduled.request, message)
            for scheduled in batch
            if scheduled.request in self.scheduler
        ]


def picture_rows(config: EngineConfig, executor: Executor) -> PictureRows:
    """Return the rows of the pictures that prompts may have."""
    if executor.first.facts.refuses_pictures:
        return NO_PICTURES
    ranks = executor.ranks
    return PictureRows(
        config.model_config.max_model_len,
        lambda digest, inputs, count: ranks.run(CollectiveCalls.encode_picture, digest, inputs, count),
        lambda digests: ranks.run(CollectiveCalls.drop_pictures, digests),
    )


def adapter_pools(config: EngineConfig, executor: Executor) -> AdapterPools:
    """Return the pools of the adapters that requests may name."""
    lora, prompt = config.lora_config, config.prompt_adapter_config
    loras = prompts = None
    if lora is not None:

        def put(slot: int, adapter: LowRankAdapter) -> None:
            executor.ranks.run(CollectiveCalls.put_adapter, slot, adapter)

        loras = AdapterPool(lora.max_loras, lora.max_cpu_loras, executor.first.read_adapter, put)
    if prompt is not None:
        limit = prompt.max_prompt_adapters
        size = executor.first.embedding_size

        def read(named: PromptAdapterRequest) -> Span:
            adapter = read_prompt_adapter(Path(named.path), named.prompt_adapter_num_virtual_tokens, size)
            return Span.of(0, adapter.embeddings, adapter.digest)

        # Their embeddings are sent with a step's inputs, and need no place on the device.
        prompts = AdapterPool(limit, limit, read, lambda slot, adapter: None)
    return AdapterPools(loras, prompts)
