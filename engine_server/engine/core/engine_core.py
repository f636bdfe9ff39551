"""The engine core: the step, and what it needs."""

import pkgutil
import time
from collections.abc import Callable

from engine_server.engine.config import EngineConfig
from engine_server.engine.core.model_runner import ModelRunner
from engine_server.engine.core.request import Request
from engine_server.engine.core.sampler import Sampler
from engine_server.engine.core.scheduler import Scheduler
from engine_server.engine.messages import AbortRequests, AddRequest, FrontEndMessage, RequestStep, StepOutputs


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
        self.scheduler = Scheduler(
            config.scheduler_config,
            self.table,
            config.model_config.eos_token_ids,
            self.runner.rope and self.runner.rope.regime,
        )
        self.sampler = Sampler(
            config.model_config.eos_token_ids,
            {path: pkgutil.resolve_name(path) for path in config.model_config.logits_processors},
        )
        on_phase("warm up", time.monotonic() - loaded)

    def handle(self, message: FrontEndMessage) -> None:
        match message:
            case AddRequest():
                self.scheduler.add(Request.from_message(message))
            case AbortRequests(request_ids):
                self.scheduler.abort(request_ids)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def step(self) -> list[RequestStep]:
        batch = self.scheduler.schedule()  # who runs, how many tokens each, which blocks
        if not batch:
            return []
        sampling = [scheduled.request for scheduled in batch if scheduled.samples]
        logits = self.runner.execute(batch)  # one flat forward
        tokens = self.sampler.sample(logits, sampling)
        return self.scheduler.update(batch, tokens)  # advance, finish, free

    def outputs(self) -> StepOutputs:
        """One step, with the state that it leaves."""
        return StepOutputs(self.step(), self.scheduler.stats())
