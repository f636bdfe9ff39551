"""Stat loggers: an engine's statistics as log lines and as Prometheus metrics."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.metrics import (
    OF_COMPLETION,
    OF_REQUEST,
    OF_STATE,
    OF_STEP,
    Metric,
    of_speculation,
    token_buckets,
)
from engine_server.telemetry.stats import IterationStats

if TYPE_CHECKING:
    from engine_server.config import EngineConfig

logger = logging.getLogger(__name__)


class StatLoggerBase(ABC):
    """A receiver of an engine's statistics: `record` is called after each step."""

    @abstractmethod
    def __init__(self, config: EngineConfig, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    def log(self) -> None:  # noqa: B027  (optional: most loggers have nothing to flush)
        """Write now instead of at the next interval."""


class LoggingStatLogger(StatLoggerBase):
    """A logger of one line per interval in which the engine computed steps, and none while it is idle."""

    def __init__(
        self,
        config: EngineConfig,
        engine_index: int = 0,
        *,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._engine_index = engine_index
        self._interval = interval
        self._clock = clock
        self._latest = SchedulerStats()
        # Start and end of the window that the next line covers.
        self._began: float | None = None
        self._ended = 0.0
        self._prompt_tokens = self._generation_tokens = self._queries = self._hits = 0
        self._drafts = self._draft_tokens = self._accepted = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        now = self._clock()
        if self._began is not None and now - self._began >= self._interval:
            self.log()
        if self._began is None:
            self._began = now
        self._ended = now
        if scheduler_stats is not None:
            self._latest = scheduler_stats
            self._queries += scheduler_stats.prefix_cache_queries
            self._hits += scheduler_stats.prefix_cache_hits
            self._drafts += scheduler_stats.num_drafts
            self._draft_tokens += scheduler_stats.num_draft_tokens
            self._accepted += scheduler_stats.num_accepted_tokens
        if iteration_stats is not None:
            self._prompt_tokens += iteration_stats.num_prompt_tokens
            self._generation_tokens += iteration_stats.num_generation_tokens

    def log(self) -> None:
        if self._began is None:
            return
        seconds = self._ended - self._began
        if seconds > 0:
            logger.info(
                "engine %d: prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, KV use %.1f %%, "
                "prefix hits %.1f %%%s",
                self._engine_index,
                self._prompt_tokens / seconds,
                self._generation_tokens / seconds,
                self._latest.num_running,
                self._latest.num_waiting,
                self._latest.kv_cache_usage * 100,
                self._hits / max(self._queries, 1) * 100,
                self._speculation(),
            )
        self._began = None
        self._prompt_tokens = self._generation_tokens = self._queries = self._hits = 0
        self._drafts = self._draft_tokens = self._accepted = 0

    def _speculation(self) -> str:
        """Return the line's end, empty without speculative decoding."""
        if self._config.speculative_config is None:
            return ""
        accepted = self._accepted / max(self._draft_tokens, 1) * 100
        length = 1 + self._accepted / max(self._drafts, 1)  # with the token that the model adds, as in vLLM
        return f", drafts accepted {accepted:.1f} %, mean acceptance length {length:.2f}"

    def log_engine_initialized(self) -> None:
        settings = ", ".join(f"{name} {value}" for name, value in _cache_settings(self._config).items())
        logger.info("engine %d: cache: %s", self._engine_index, settings)


ADAPTER_LABELS = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
ADAPTERS_TEXT = "The LoRA adapters of waiting and running requests, as labels; the time of the latest change."


class PrometheusStatLogger(StatLoggerBase):
    """A logger that updates the metrics of `metrics.py`."""

    def __init__(
        self, config: EngineConfig, engine_index: int = 0, *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._config = config
        self._names = {
            "model_name": config.model_config.served_model_name[0],
            "engine": str(engine_index),
        }
        # The labels that name the adapters.
        self._adapters: tuple[str, str, str] | None = None
        self._families = _FAMILIES.setdefault(registry, _Families(registry))
        # Labels are looked up once here rather than at every step.
        speculative = config.speculative_config
        of_drafts = [] if speculative is None else of_speculation(speculative.num_speculative_tokens)
        self._of_state, self._of_step, self._of_completion, self._of_request = (
            [self._series(metric) for metric in table]
            for table in (OF_STATE + of_drafts, OF_STEP, OF_COMPLETION, OF_REQUEST)
        )

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats is not None:
            _feed(self._of_state, scheduler_stats)
            self._show_adapters(scheduler_stats)
        if iteration_stats is not None:
            _feed(self._of_step, iteration_stats)
            for completion in iteration_stats.finished:
                _feed(self._of_completion, completion)
            for request in iteration_stats.ended:
                _feed(self._of_request, request)

    def log_engine_initialized(self) -> None:
        settings = _cache_settings(self._config)
        self._info(
            "vllm:cache_config_info",
            "The cache's settings, as labels.",
            **settings,
            engine=self._names["engine"],
        ).set(1)
        self._show_adapters(SchedulerStats())

    def _show_adapters(self, stats: SchedulerStats) -> None:
        """Name the adapters of running and waiting requests in labels, in place of the names before."""
        lora = self._config.lora_config
        labels = (
            "0" if lora is None else str(lora.max_loras),
            ",".join(stats.waiting_adapters),
            ",".join(stats.running_adapters),
        )
        if labels == self._adapters:
            return
        family = self._families.family(Gauge, "vllm:lora_requests_info", ADAPTERS_TEXT, ADAPTER_LABELS)
        if self._adapters is not None:
            family.remove(*self._adapters)
        self._adapters = labels
        family.labels(*labels).set_to_current_time()

    def _info(self, name: str, text: str, **labels: str) -> Gauge:
        return self._families.family(Gauge, name, text, tuple(labels)).labels(**labels)

    def _series(self, metric: Metric) -> Series:
        options: dict[str, Any] = {}
        if metric.kind is Histogram:
            options["buckets"] = metric.buckets or token_buckets(self._config.model_config.max_model_len)
        labels = (*metric.scope, *metric.labels)
        kind: Any = metric.kind
        family = self._families.family(kind, metric.name, metric.text, labels, metric.former, **options)
        series = family.labels(**{name: self._names[name] for name in metric.scope}, **metric.labels)
        value = attrgetter(metric.value) if isinstance(metric.value, str) else metric.value
        if metric.kind is Histogram:
            return value, partial(_observe, series)
        return value, series.set if metric.kind is Gauge else series.inc


# A function that reads values from statistics, and one that records them.
Series = tuple[Callable[[Any], float | list[float]], Callable[[Any], None]]


def _feed(table: list[Series], stats: Any) -> None:
    for value, take in table:
        take(value(stats))


def _observe(series: Any, values: float | list[float]) -> None:
    """Record a histogram's values with one update for each bucket: a step has a value for each of its requests."""
    if not isinstance(values, list):
        values = [values]
    if values:
        series._sum.inc(sum(values))
    bounds = series._upper_bounds
    for bucket, count in Counts(bisect_left(bounds, value) for value in values).items():
        series._buckets[bucket].inc(count)


def _cache_settings(config: EngineConfig) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.structs.asdict(config.cache_config).items()}


M = TypeVar("M", Gauge, Counter, Histogram)


class _Families:
    """The metric families of one registry, which engines in one process share and distinguish by label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: dict[str, Gauge | Counter | Histogram] = {}

    def family(
        self,
        kind: type[M],
        name: str,
        text: str,
        labels: Sequence[str],
        former: str | None = None,
        **options: Any,
    ) -> M:
        metric = self._made.get(name)
        if metric is None:
            metric = self._made[name] = kind(name, text, labels, registry=self._registry, **options)
            if former is not None:
                self._registry.register(_FormerName(metric, former))
        assert isinstance(metric, kind)
        return metric


class _FormerName(Collector):
    """A metric under the former name that older dashboards query, copied at each scrape."""

    def __init__(self, metric: Gauge | Counter | Histogram, name: str) -> None:
        self._metric = metric
        self._name = name

    def describe(self) -> Iterator[Family]:
        return self._renamed(self._metric.describe())

    def collect(self) -> Iterator[Family]:
        return self._renamed(self._metric.collect())

    def _renamed(self, families: Iterable[Family]) -> Iterator[Family]:
        for family in families:
            copy = Family(self._name, family.documentation, family.type)
            copy.samples = [
                sample._replace(name=self._name + sample.name.removeprefix(family.name))
                for sample in family.samples
            ]
            yield copy


_FAMILIES: dict[CollectorRegistry, _Families] = {}
