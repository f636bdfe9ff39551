"""The engine core: the step, and what it needs."""

import logging
import math
import pkgutil
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.distributed.worker_processes import start_workers
from engine_server.core.heads.pooler import Pooler
from engine_server.core.heads.sampler import Launched, Sampler
from engine_server.core.model_runner import ModelRunner
from engine_server.core.operations import Operations
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Batch, Sampled, Scheduler
from engine_server.modeling.device_time import elapsed_seconds
from engine_server.modeling.progress import ProgressClock
from engine_server.requests.messages import (
    AbortRequests,
    AddRequest,
    Call,
    FrontEndMessage,
    RequestStep,
    Returned,
    StepOutputs,
)

MEMORY_SECONDS = 1.0  # how often a GPU is asked for its free memory, which takes it a moment
BLAME_SECONDS = 2.0  # within which another rank's end is known, where a step failed of it
logger = logging.getLogger(__name__)


class LaunchedStep(NamedTuple):
    """A step that the device was given."""

    batch: Batch
    sampling: list[Request]
    samples: Launched | list[Sampled]  # one for each of `sampling`
    begun: torch.Event | None  # in the device's work
    ended: torch.Event | None


class EngineCore:
    """Runs requests on the device, a step at a time. One thread only."""

    def __init__(
        self,
        config: EngineConfig,
        on_phase: Callable[[str, float], None],
        on_death: Callable[[str], None] | None = None,
        progress: ProgressClock | None = None,
    ) -> None:
        """Load the model and make the KV cache; `on_phase(name, seconds)` hears of each part as it ends.

        on_death: hears, in another thread, why another rank has ended, which the step may be waiting for.
        progress: ticks at every layer and every step.
        """
        self.progress = progress or ProgressClock()
        started = time.monotonic()
        executor: type[ModelRunner] = pkgutil.resolve_name(config.parallel_config.worker_cls)
        self.workers = start_workers(config, on_death)
        self.ranks = self.workers.communicator
        self.runner = executor(config, self.ranks, self.workers.broadcast, self.progress)
        loaded = time.monotonic()
        on_phase("load", loaded - started)
        self.table = self.runner.prepare()
        self.num_blocks = self.runner.num_blocks
        pooling = config.model_config.pooling
        self.scheduler = Scheduler(
            config.scheduler_config,
            self.table,
            config.model_config.eos_token_ids,
            config.cache_config.enable_prefix_caching and not pooling,  # pooling wants every token's state
            self.runner.erase,
            self.runner.regime,
        )
        self.sampler = Sampler(
            config.model_config.eos_token_ids,
            {path: pkgutil.resolve_name(path) for path in config.model_config.logits_processors},
            self.runner.platform,
            config.scheduler_config.max_num_seqs,
            config.model_config.max_model_len,
            self.runner.timer,
        )
        if self.sampler.kernels:
            self.runner.draw = self.sampler.kernels.sample
        self.runner.capture_graphs()
        self.operations = Operations(config, self.runner, self.scheduler)
        self.pooler = Pooler(self.runner, pooling) if pooling else None
        self.overlapped = self.runner.overlapped
        self._launched: LaunchedStep | None = None  # what the device is at work on, where steps overlap
        self._num_tokens, self._device_seconds = 0, 0.0  # of the step
        self._memory: dict[str, int] = {}  # what SchedulerStats says of it
        self._memory_told = -math.inf  # when that was read, on the clock of steps
        on_phase("warm up", time.monotonic() - loaded)

    def handle(self, message: FrontEndMessage) -> Returned | None:
        """Do as a message says; a call is answered."""
        match message:
            case Call():
                return self.operations.run(message)
            case AddRequest():
                self.scheduler.add(Request.from_message(message))
            case AbortRequests(request_ids):
                self.scheduler.abort(request_ids)
        return None

    @property
    def has_work(self) -> bool:
        if self._launched is not None:
            return True
        return bool(self.scheduler.requests) and not self.operations.halted

    def step(self) -> list[RequestStep]:
        """Launch a step, and finish it."""
        launched, failed = self.launch()
        return failed + self.finish(launched)

    def overlapped_step(self) -> list[RequestStep]:
        """Launch a step, and finish the one before while the device is at work."""
        steps: list[RequestStep] = []
        before, self._launched = self._launched, None
        if self.scheduler.needs_tokens:
            steps, before = self.finish(before), None
        self._launched, failed = self.launch()
        return steps + failed + self.finish(before)

    def launch(self) -> tuple[LaunchedStep | None, list[RequestStep]]:
        """Give the device work, and wait for nothing; what it is at work on, and which requests failed."""
        if self.operations.halted:
            return None, []
        batch = self.scheduler.schedule()  # who runs, how many tokens each, which blocks
        if not batch:
            return None, []
        self._num_tokens = sum(scheduled.num_tokens for scheduled in batch)
        begun = self.runner.platform.record_event(timed=True)
        try:
            sampling = [scheduled.request for scheduled in batch if scheduled.samples]
            self.sampler.prepare(sampling)
            output = self.runner.execute(batch)  # one flat forward: logits, or hidden states to pool
            samples = self.pooler.pool(output, batch) if self.pooler else self.sample(output, sampling)
        except Exception as error:
            short = isinstance(error, torch.OutOfMemoryError) and self.ranks.size == 1
            return None, self.retry(batch, error) if short else self.give_up(batch, error)
        ended = self.runner.platform.record_event(timed=True)
        return LaunchedStep(batch, self.scheduler.advance(batch), samples, begun, ended), []

    def sample(self, logits: Tensor, sampling: list[Request]) -> Launched:
        """Draw tokens, which the next step finds on the device where it can't wait for the host to know them."""
        launched = self.sampler.launch(logits, sampling, self.runner.drawn)
        if self.overlapped:
            self.runner.keep(launched.tokens)
        return launched

    def finish(self, launched: LaunchedStep | None) -> list[RequestStep]:
        """Wait for the device, and let requests have their tokens."""
        if launched is None:
            return []
        try:
            samples = launched.samples
            sampled = samples.collect() if isinstance(samples, Launched) else samples
            self._device_seconds = elapsed_seconds(launched.begun, launched.ended)
        except Exception as error:
            return self.give_up(launched.batch, error)
        return self.scheduler.update(launched.sampling, sampled)

    def retry(self, batch: Batch, error: Exception) -> list[RequestStep]:
        """Compute a batch again, in smaller steps, for which there was too little memory."""
        traceback.clear_frames(error.__traceback__)  # they hold what was computed
        self.runner.platform.release_cached_memory()
        logger.warning("a step of %d tokens ran out of memory: %s", self._num_tokens, error)
        return self.scheduler.retry(batch, str(error))

    def give_up(self, batch: Batch, error: Exception) -> list[RequestStep]:
        """End a batch whose step failed as a whole: any of its requests may be the cause, and would be again.

        The others and the model are as they were, so the core goes on, unless its device has failed, or
        it is one of several ranks.
        """
        if isinstance(error, torch.AcceleratorError) or self.ranks.size > 1:  # which may be out of step
            self.workers.check(BLAME_SECONDS)
            raise error
        self.runner.platform.synchronize()  # raises AcceleratorError where the device has failed
        logger.exception("a step of %d requests failed", len(batch))
        message = f"{type(error).__name__}: {error}"
        return [self.scheduler.fail(request, message) for request, _ in batch if request in self.scheduler]

    def outputs(self) -> StepOutputs:
        """One step, with the state that it leaves."""
        self.progress.tick()
        started, self._num_tokens, self._device_seconds = time.perf_counter(), 0, 0.0
        self.runner.timer.take()
        steps = self.scheduler.expire()
        if self.has_work:
            steps += self.overlapped_step() if self.overlapped else self.step()
        self.workers.check()  # a collective that was aborted gives anything
        if started - self._memory_told > MEMORY_SECONDS or not self.has_work:
            self._memory = self.runner.platform.memory_stats(self.runner.backend.caches)
            self._memory_told = started
        seconds, waited = time.perf_counter() - started, self.runner.timer.take()
        stats = msgspec.structs.replace(
            self.scheduler.stats(),
            halted=self.operations.halted,
            sleep_level=self.operations.sleep_level,
            num_tokens=self._num_tokens,
            step_seconds=seconds,
            host_seconds=seconds - waited,
            device_seconds=self._device_seconds or waited,
            replayed=self.runner.replayed,
            **self._memory,
        )
        return StepOutputs(steps, stats)
