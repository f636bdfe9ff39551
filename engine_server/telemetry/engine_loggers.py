"""The stat loggers of one engine, by name."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from engine_server.config import EngineConfig
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import LoggingStatLogger, PrometheusStatLogger, StatLoggerBase
from engine_server.telemetry.stats import IterationStats

logger = logging.getLogger(__name__)

# A class, or another callable with the same arguments.
LoggerFactory = Callable[[EngineConfig, int], StatLoggerBase]
StatLoggers = Mapping[str, StatLoggerBase | LoggerFactory] | Sequence[StatLoggerBase | LoggerFactory]

# Seconds between two reports of a logger that keeps failing.
REPORT_SECONDS = 60.0


class EngineLoggers:
    """The stat loggers of one engine. An error of one is logged, at most once a minute, and the logger stays in use."""

    def __init__(self, loggers: Mapping[str, StatLoggerBase]) -> None:
        self._loggers = dict(loggers)
        # By logger: the time of its last report.
        self._reported: dict[str, float] = {}

    def initialize(self) -> None:
        """Notify each logger that the engine has started."""
        for name, stat_logger in list(self._loggers.items()):
            try:
                stat_logger.log_engine_initialized()
            except Exception:
                self._report(name)

    def record(self, scheduler_stats: SchedulerStats | None, stats: IterationStats | None) -> None:
        for name, stat_logger in list(self._loggers.items()):
            try:
                stat_logger.record(scheduler_stats, stats)
            except Exception:
                self._report(name)

    def log(self) -> None:
        """Make each logger log now instead of at its next interval."""
        for name, stat_logger in list(self._loggers.items()):
            try:
                stat_logger.log()
            except Exception:
                self._report(name)

    def add(self, name: str, stat_logger: StatLoggerBase) -> None:
        """Add a logger. Raises KeyError if the name is taken."""
        if name in self._loggers:
            raise KeyError(f"a stat logger {name!r} already exists")
        self._loggers[name] = stat_logger

    def remove(self, name: str) -> None:
        """Remove a logger. Raises KeyError for an unknown name."""
        del self._loggers[name]
        self._reported.pop(name, None)

    def _report(self, name: str) -> None:
        now = time.monotonic()
        if now - self._reported.get(name, -REPORT_SECONDS) >= REPORT_SECONDS:
            self._reported[name] = now
            logger.exception("stat logger %r failed", name)


def create_loggers(config: EngineConfig, log_stats: bool, stat_loggers: StatLoggers | None) -> EngineLoggers:
    """Make an engine's loggers. A mapping replaces the default ones, a sequence adds to them.

    Both take instances, and classes or other callables that make one.
    """
    chosen: dict[str, StatLoggerBase | LoggerFactory]
    if isinstance(stat_loggers, Mapping):
        chosen = dict(stat_loggers)
    else:
        chosen = {"prometheus": PrometheusStatLogger}
        if log_stats:
            chosen["logging"] = LoggingStatLogger
        chosen |= {f"added {number}": stat_logger for number, stat_logger in enumerate(stat_loggers or ())}
    if config.observability_config.otlp_traces_endpoint is not None:
        from engine_server.telemetry.tracing import TracingStatLogger  # needs an optional dependency

        chosen["tracing"] = TracingStatLogger
    loggers = EngineLoggers(
        {
            name: stat_logger if isinstance(stat_logger, StatLoggerBase) else stat_logger(config, 0)
            for name, stat_logger in chosen.items()
        }
    )
    loggers.initialize()
    return loggers
