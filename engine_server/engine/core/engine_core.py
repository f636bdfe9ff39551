"""The engine core: the step, and what it needs."""

import logging
import pkgutil
import time
from collections.abc import Callable

import msgspec
import torch

from engine_server.engine.config import EngineConfig
from engine_server.engine.core.model_runner import ModelRunner
from engine_server.engine.core.operations import Operations
from engine_server.engine.core.pooler import Pooler
from engine_server.engine.core.request import Request
from engine_server.engine.core.sampler import Sampler
from engine_server.engine.core.scheduler import Batch, Scheduler
from engine_server.engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    FrontEndMessage,
    RequestStep,
    Returned,
    StepOutputs,
)
from engine_server.modeling import device_time, progress

logger = logging.getLogger(__name__)


class EngineCore:
    """Runs requests on the device, a step at a time. One thread only."""

    def __init__(self, config: EngineConfig, on_phase: Callable[[str, float], None]) -> None:
        """Load the model and make the KV cache; `on_phase(name, seconds)` hears of each part as it ends."""
        started = time.monotonic()
        executor: type[ModelRunner] = pkgutil.resolve_name(config.parallel_config.worker_cls)
        self.runner = executor(config)
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
            self.runner.backend.erase,
            self.runner.regime,
        )
        self.sampler = Sampler(
            config.model_config.eos_token_ids,
            {path: pkgutil.resolve_name(path) for path in config.model_config.logits_processors},
        )
        self.operations = Operations(config, self.runner, self.scheduler)
        self.pooler = Pooler(self.runner, pooling) if pooling else None
        self._num_tokens = 0  # of the step
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
        return bool(self.scheduler.requests) and not self.operations.halted

    def step(self) -> list[RequestStep]:
        batch = self.scheduler.schedule()  # who runs, how many tokens each, which blocks
        self._num_tokens = sum(scheduled.num_tokens for scheduled in batch)
        if not batch:
            return []
        sampling = [scheduled.request for scheduled in batch if scheduled.samples]
        try:
            output = self.runner.execute(batch)  # one flat forward: logits, or hidden states to pool
            tokens = (
                self.pooler.pool(output, batch)
                if self.pooler
                else self.sampler.launch(output, sampling).collect()
            )
        except Exception as error:
            return self.give_up(batch, error)
        return self.scheduler.update(batch, tokens)  # advance, finish, free

    def give_up(self, batch: Batch, error: Exception) -> list[RequestStep]:
        """End a batch whose step failed as a whole: any of its requests may be the cause, and would be again.

        The others and the model are as they were, so the core goes on, unless its device has failed.
        """
        if isinstance(error, torch.AcceleratorError):
            raise error
        logger.exception("a step of %d requests failed", len(batch))
        message = f"{type(error).__name__}: {error}"
        return [self.scheduler.fail(scheduled.request, message) for scheduled in batch]

    def outputs(self) -> StepOutputs:
        """One step, with the state that it leaves."""
        progress.tick()
        started, self._num_tokens = time.perf_counter(), 0
        device_time.take()
        steps = self.scheduler.expire() + (self.step() if self.has_work else [])
        seconds = time.perf_counter() - started
        stats = msgspec.structs.replace(
            self.scheduler.stats(),
            halted=self.operations.halted,
            sleep_level=self.operations.sleep_level,
            num_tokens=self._num_tokens,
            step_seconds=seconds,
            host_seconds=seconds - device_time.take(),
        )
        return StepOutputs(steps, stats)
