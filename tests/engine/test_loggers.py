"""Stat loggers, read back as a scraper and a log reader would."""

import logging

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine_server import SamplingParams
from engine_server.engine.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from engine_server.engine.loggers import LoggingStatLogger, PrometheusStatLogger, StatLoggerBase
from engine_server.engine.metrics import token_buckets
from engine_server.engine.stats import EndedRequest, FinishedRequest, IterationStats, SchedulerStats


def a_config(max_model_len: int = 1024) -> EngineConfig:
    return EngineConfig(
        model_config=ModelConfig(
            model="small",
            path="/models/small",
            tokenizer="/models/small",
            served_model_name=["small", "alias"],
            dtype="float32",
            max_model_len=max_model_len,
            vocab_size=100,
            eos_token_ids=[0],
            seed=0,
        ),
        cache_config=CacheConfig(
            block_size=16,
            gpu_memory_utilization=0.9,
            kv_cache_memory_bytes=None,
            num_gpu_blocks_override=8,
            num_gpu_blocks=8,
        ),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=64, max_num_seqs=4, enable_chunked_prefill=True
        ),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(),
        load_config=LoadConfig(),
    )


STEP = IterationStats(
    num_prompt_tokens=7,
    num_generation_tokens=3,
    num_cached_prompt_tokens=2,
    time_to_first_tokens=[0.03],
    inter_token_latencies=[0.02, 0.07],
    finished=[
        FinishedRequest(
            reason="length",
            num_prompt_tokens=7,
            num_generation_tokens=5,
            max_tokens=5,
            e2e=1.9,
            queue=0.1,
            prefill=0.2,
            decode=1.6,
            num_cached_tokens=2,
        )
    ],
)
STEP.ended.append(EndedRequest("a", SamplingParams(), None, STEP.finished))


NO_ADAPTERS = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}


def scrape(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def key(name: str, engine: str = "0", **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    labels |= {"model_name": "small", "engine": engine}
    return f"vllm:{name}", tuple(sorted(labels.items()))


def test_prometheus_exposes_what_was_recorded() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_config(), registry=registry)
    logger.log_engine_initialized()
    logger.record(SchedulerStats(num_running=4, num_waiting=2, kv_cache_usage=0.25, num_preemptions=1), STEP)
    logger.record(SchedulerStats(num_running=3, num_preemptions=1), None)
    values = scrape(registry)
    assert values[key("num_requests_running")] == 3
    assert values[key("num_requests_waiting")] == 0
    assert values[key("num_preemptions_total")] == 2
    assert values[key("prompt_tokens_total")] == 7
    assert values[key("prompt_tokens_cached_total")] == 2
    assert values[key("generation_tokens_total")] == 3
    assert values[key("request_success_total", finished_reason="length")] == 1
    assert values[key("request_success_total", finished_reason="abort")] == 0
    assert values[key("iteration_tokens_total_sum")] == 10
    assert values[key("time_to_first_token_seconds_bucket", le="0.02")] == 0
    assert values[key("time_to_first_token_seconds_bucket", le="0.04")] == 1
    assert values[key("inter_token_latency_seconds_count")] == 2
    assert values[key("e2e_request_latency_seconds_sum")] == pytest.approx(1.9)
    assert values[key("request_inference_time_seconds_sum")] == pytest.approx(1.8)
    assert values[key("request_time_per_output_token_seconds_sum")] == pytest.approx(0.4)
    assert values[key("request_prefill_kv_computed_tokens_sum")] == 5
    assert values[key("request_params_max_tokens_sum")] == 5
    settings = {
        "block_size": "16",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.9",
        "kv_cache_memory_bytes": "None",
        "num_gpu_blocks": "8",
        "num_gpu_blocks_override": "8",
    }
    info = ("vllm:cache_config_info", tuple(settings.items()))
    assert values[info] == 1


def test_prometheus_keeps_the_names_of_older_dashboards() -> None:
    registry = CollectorRegistry()
    PrometheusStatLogger(a_config(), registry=registry).record(SchedulerStats(kv_cache_usage=0.5), STEP)
    values = scrape(registry)
    assert values[key("gpu_cache_usage_perc")] == values[key("kv_cache_usage_perc")] == 0.5
    assert values[key("time_per_output_token_seconds_bucket", le="0.025")] == 1
    assert values[key("time_per_output_token_seconds_sum")] == values[key("inter_token_latency_seconds_sum")]


def test_engines_of_one_process_share_the_metrics() -> None:
    registry = CollectorRegistry()
    first = PrometheusStatLogger(a_config(), registry=registry)
    second = PrometheusStatLogger(a_config(4096), 1, registry=registry)
    again = PrometheusStatLogger(a_config(), registry=registry)
    for logger in (first, second, again):
        logger.log_engine_initialized()
        logger.record(SchedulerStats(), STEP)
    values = scrape(registry)
    assert values[key("generation_tokens_total")] == 6
    assert values[key("generation_tokens_total", engine="1")] == 3


def test_an_aborted_request_without_a_token_is_counted() -> None:
    registry = CollectorRegistry()
    aborted = FinishedRequest("abort", 7, 0, None, e2e=0.5, queue=0.5, prefill=0.0, decode=0.0)
    PrometheusStatLogger(a_config(), registry=registry).record(None, IterationStats(finished=[aborted]))
    values = scrape(registry)
    assert values[key("request_success_total", finished_reason="abort")] == 1
    assert values[key("request_params_max_tokens_count")] == 0
    assert values[key("request_time_per_output_token_seconds_count")] == 0


@pytest.mark.parametrize(
    ("longest", "buckets"),
    [(1, [1]), (7, [1, 2, 5]), (1024, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])],
)
def test_token_buckets(longest: int, buckets: list[int]) -> None:
    assert token_buckets(longest) == buckets


def test_logging_says_one_line_for_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine_server.engine.loggers")
    times = iter([0.0, 5.0, 9.0, 100.0, 102.0])
    logger = LoggingStatLogger(a_config(), clock=lambda: next(times))
    for _ in range(3):
        state = SchedulerStats(num_running=2, kv_cache_usage=0.5, prefix_cache_queries=8, prefix_cache_hits=2)
        logger.record(state, STEP)
    assert not caplog.messages
    # Idle from 9 to 100: the line must speak of the nine seconds of work alone.
    logger.record(SchedulerStats(), STEP)
    assert caplog.messages == [
        "engine 0: prompt 2.3 tok/s, generation 1.0 tok/s, running 2, waiting 0, KV use 50.0 %, prefix hits 25.0 %"
    ]
    logger.record(SchedulerStats(num_waiting=5), STEP)
    logger.log()
    assert "generation 3.0 tok/s, running 0, waiting 5" in caplog.messages[1]
    logger.log()
    assert len(caplog.messages) == 2


def test_a_logger_must_record() -> None:
    class Silent(StatLoggerBase):
        def __init__(self, config: object, engine_index: int = 0) -> None: ...

    with pytest.raises(TypeError, match="record"):
        Silent(a_config())  # type: ignore[abstract]


def test_scheduler_stats_cross_a_process_boundary() -> None:
    stats = SchedulerStats(num_running=3, kv_cache_usage=0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=SchedulerStats) == stats
