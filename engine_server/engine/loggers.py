"""Stat loggers: what an engine says about itself, to a log and to Prometheus."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine_server.engine.stats import FinishedRequest, FinishReason, IterationStats, SchedulerStats

if TYPE_CHECKING:
    from engine_server.engine.config import EngineConfig

logger = logging.getLogger(__name__)


class StatLoggerBase(ABC):
    """One per engine; `record` is called after each step with whatever that step brought."""

    @abstractmethod
    def __init__(self, config: EngineConfig, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    def log(self) -> None:  # noqa: B027  (optional: most loggers have nothing to flush)
        """Say now what would be said at the next interval."""


class LoggingStatLogger(StatLoggerBase):
    """One line for each ten seconds in which the engine worked; silent while it is idle."""

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
        self._began: float | None = None  # of the window that the next line covers
        self._ended = 0.0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        now = self._clock()
        if self._began is not None and now - self._began >= self._interval:
            self.log()
        if self._began is None:
            self._began = now
        self._ended = now
        if scheduler_stats is not None:
            self._latest = scheduler_stats
        if iteration_stats is not None:
            self._prompt_tokens += iteration_stats.num_prompt_tokens
            self._generation_tokens += iteration_stats.num_generation_tokens

    def log(self) -> None:
        if self._began is None:
            return
        seconds = self._ended - self._began
        if seconds > 0:
            logger.info(
                "engine %d: prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, KV use %.1f %%",
                self._engine_index,
                self._prompt_tokens / seconds,
                self._generation_tokens / seconds,
                self._latest.num_running,
                self._latest.num_waiting,
                self._latest.kv_cache_usage * 100,
            )
        self._began = None
        self._prompt_tokens = self._generation_tokens = 0

    def log_engine_initialized(self) -> None:
        settings = ", ".join(f"{name} {value}" for name, value in _cache_settings(self._config).items())
        logger.info("engine %d: cache: %s", self._engine_index, settings)


# fmt: off
TIME_TO_FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
                       160, 640, 2560)
BETWEEN_TOKENS = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# fmt: on
LABELS = ("model_name", "engine")


def token_buckets(longest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... as far as `longest`."""
    return [
        step * 10**power
        for power in range(len(str(longest)))
        for step in (1, 2, 5)
        if step * 10**power <= longest
    ]


class PrometheusStatLogger(StatLoggerBase):
    """vLLM's names, labels and buckets, so that dashboards made for it work unchanged."""

    def __init__(
        self, config: EngineConfig, engine_index: int = 0, *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._config = config
        self._engine = str(engine_index)
        self._families = _FAMILIES.setdefault(registry, _Families(registry))
        names = {"model_name": config.model_config.served_model_name[0], "engine": self._engine}
        tokens = token_buckets(config.model_config.max_model_len)

        # The labels are looked up once, here, and not at every step.
        def gauge(name: str, text: str, former: str | None = None) -> Gauge:
            return self._families.family(Gauge, name, text, LABELS, former).labels(**names)

        def counter(name: str, text: str) -> Counter:
            return self._families.family(Counter, name, text, LABELS).labels(**names)

        def histogram(name: str, text: str, buckets: Sequence[float], former: str | None = None) -> Histogram:
            return self._families.family(Histogram, name, text, LABELS, former, buckets=buckets).labels(
                **names
            )

        self._running = gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self._kv_cache_usage = gauge(
            "kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1.", former="gpu_cache_usage_perc"
        )

        self._preemptions = counter("num_preemptions", "Requests put back to the queue for want of blocks.")
        self._prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens processed.")
        self._cached_prompt_tokens = counter("prompt_tokens_cached", "Prompt tokens that were not computed.")
        self._generation_tokens = counter("generation_tokens", "Tokens generated.")
        success = self._families.family(
            Counter, "request_success", "Requests ended, by their reason.", (*LABELS, "finished_reason")
        )
        self._success = {
            reason: success.labels(**names, finished_reason=reason) for reason in get_args(FinishReason)
        }

        self._step_tokens = histogram("iteration_tokens_total", "Tokens in one step.", STEP_TOKENS)
        self._first_token = histogram(
            "time_to_first_token_seconds", "Arrival to the first token.", TIME_TO_FIRST_TOKEN
        )
        self._between_tokens = histogram(
            "inter_token_latency_seconds",
            "Time between a request's tokens.",
            BETWEEN_TOKENS,
            former="time_per_output_token_seconds",
        )
        self._request_between_tokens = histogram(
            "request_time_per_output_token_seconds", "A request's mean time between tokens.", BETWEEN_TOKENS
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to the last token.", REQUEST_LATENCY)
        self._queue = histogram("request_queue_time_seconds", "Arrival to first scheduled.", REQUEST_LATENCY)
        self._inference = histogram(
            "request_inference_time_seconds", "First scheduled to the last token.", REQUEST_LATENCY
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "First scheduled to the first token.", REQUEST_LATENCY
        )
        self._decode = histogram(
            "request_decode_time_seconds", "The first token to the last.", REQUEST_LATENCY
        )
        self._request_prompt = histogram("request_prompt_tokens", "A request's prompt tokens.", tokens)
        self._request_generation = histogram(
            "request_generation_tokens", "A request's generated tokens.", tokens
        )
        self._request_longest_generation = histogram(
            "request_max_num_generation_tokens", "The longest of a request's answers, in tokens.", tokens
        )
        self._request_max_tokens = histogram(
            "request_params_max_tokens", "A request's max_tokens, where given.", tokens
        )
        self._request_computed = histogram(
            "request_prefill_kv_computed_tokens", "A request's prompt tokens less the cached ones.", tokens
        )

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats is not None:
            self._running.set(scheduler_stats.num_running)
            self._waiting.set(scheduler_stats.num_waiting)
            self._kv_cache_usage.set(scheduler_stats.kv_cache_usage)
            self._preemptions.inc(scheduler_stats.num_preemptions)
            self._prefix_queries.inc(scheduler_stats.prefix_cache_queries)
            self._prefix_hits.inc(scheduler_stats.prefix_cache_hits)
        if iteration_stats is not None:
            self._prompt_tokens.inc(iteration_stats.num_prompt_tokens)
            self._cached_prompt_tokens.inc(iteration_stats.num_cached_prompt_tokens)
            self._generation_tokens.inc(iteration_stats.num_generation_tokens)
            self._step_tokens.observe(
                iteration_stats.num_prompt_tokens + iteration_stats.num_generation_tokens
            )
            for seconds in iteration_stats.time_to_first_tokens:
                self._first_token.observe(seconds)
            for seconds in iteration_stats.inter_token_latencies:
                self._between_tokens.observe(seconds)
            for request in iteration_stats.finished:
                self._finished(request)

    def _finished(self, request: FinishedRequest) -> None:
        self._success[request.reason].inc()
        self._e2e.observe(request.e2e)
        self._queue.observe(request.queue)
        self._inference.observe(request.inference)
        self._prefill.observe(request.prefill)
        self._decode.observe(request.decode)
        self._request_prompt.observe(request.num_prompt_tokens)
        self._request_generation.observe(request.num_generation_tokens)
        self._request_longest_generation.observe(request.num_generation_tokens)
        self._request_computed.observe(request.num_prompt_tokens - request.num_cached_tokens)
        if request.max_tokens is not None:
            self._request_max_tokens.observe(request.max_tokens)
        if request.time_per_output_token is not None:
            self._request_between_tokens.observe(request.time_per_output_token)

    def log_engine_initialized(self) -> None:
        settings = _cache_settings(self._config)
        family = self._families.family(
            Gauge, "cache_config_info", "The cache's settings, as labels.", (*settings, "engine")
        )
        family.labels(**settings, engine=self._engine).set(1)


def _cache_settings(config: EngineConfig) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.structs.asdict(config.cache_config).items()}


M = TypeVar("M", Gauge, Counter, Histogram)


class _Families:
    """The metrics of one registry. Engines that share a process share them and differ by label."""

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
            metric = self._made[name] = kind(f"vllm:{name}", text, labels, registry=self._registry, **options)
            if former is not None:
                self._registry.register(_FormerName(metric, f"vllm:{former}"))
        assert isinstance(metric, kind)
        return metric


class _FormerName(Collector):
    """A metric once more under a name that older dashboards query, copied when it is read."""

    def __init__(self, metric: Gauge | Counter | Histogram, name: str) -> None:
        self._metric = metric
        self._name = name

    def describe(self) -> Iterator[Metric]:
        return self._renamed(self._metric.describe())

    def collect(self) -> Iterator[Metric]:
        return self._renamed(self._metric.collect())

    def _renamed(self, families: Iterable[Metric]) -> Iterator[Metric]:
        for family in families:
            copy = Metric(self._name, family.documentation, family.type)
            copy.samples = [
                sample._replace(name=self._name + sample.name.removeprefix(family.name))
                for sample in family.samples
            ]
            yield copy


_FAMILIES: dict[CollectorRegistry, _Families] = {}
