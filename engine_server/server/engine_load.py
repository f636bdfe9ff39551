"""The engine's current load, for the header by which routers choose a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.wire.engine_report import ReportedLoad
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import StatLoggerBase

if TYPE_CHECKING:
    from engine_server.telemetry.stats import IterationStats


class EngineLoad(StatLoggerBase):
    """The load after the latest step."""

    def __init__(self) -> None:
        # Requests that can run at the same time.
        self.max_num_seqs = 0
        # Tokens of prompt and answer; 0 until the model is loaded.
        self.max_model_len = 0
        self._stats = SchedulerStats()

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats is not None:
            self._stats = scheduler_stats

    def log_engine_initialized(self) -> None:
        pass

    def report(self) -> ReportedLoad:
        """Return the load as routers are told."""
        stats = self._stats
        return ReportedLoad(
            running=stats.num_running,
            waiting=stats.num_waiting,
            room=max(0, self.max_num_seqs - stats.num_running - stats.num_waiting),
            kv=stats.kv_cache_usage,
            context=self.max_model_len,
        )
