"""A stat logger that adds up what the steps of an engine report."""

from engine_server import StatLoggerBase
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.stats import IterationStats


class Counts(StatLoggerBase):
    def __init__(self, config: object = None, engine_index: int = 0) -> None:
        self.steps = self.preemptions = self.hits = self.replayed = self.drafted = self.accepted = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats:
            self.steps += scheduler_stats.num_tokens > 0
            self.preemptions += scheduler_stats.num_preemptions
            self.hits += scheduler_stats.prefix_cache_hits
            self.replayed += scheduler_stats.num_tokens > 0 and scheduler_stats.replayed
            self.drafted += scheduler_stats.num_draft_tokens
            self.accepted += scheduler_stats.num_accepted_tokens

    def log_engine_initialized(self) -> None: ...
