"""Stat loggers, checked through Prometheus scrapes and log lines."""

import logging
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine_server import EngineArgs, LLMEngine, QueueFullError, SamplingParams
from engine_server.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import LoggingStatLogger, PrometheusStatLogger, StatLoggerBase
from engine_server.telemetry.metrics import token_buckets
from engine_server.telemetry.stats import EndedRequest, FinishedRequest, IterationStats


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


def test_prometheus_exposes_recorded_statistics() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_config(), registry=registry)
    logger.log_engine_initialized()
    logger.record(
        SchedulerStats(num_running=4, num_waiting=2, kv_cache_usage=0.25, num_preemptions=1, num_tokens=7),
        STEP,
    )
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
        "bytes_per_state": "None",
        "bytes_per_token": "None",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.9",
        "kv_cache_memory_bytes": "None",
        "num_gpu_blocks": "8",
        "num_gpu_blocks_override": "8",
        "num_state_slots": "None",
    }
    info = ("vllm:cache_config_info", tuple(settings.items()))
    assert values[info] == 1


def test_pictures_are_counted_by_outcome_and_by_the_source_of_their_rows() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_config(), registry=registry)
    for _ in range(2):
        pictures = PictureStats(seconds=[0.03, 0.3], refused=1, remembered=3)
        logger.record(SchedulerStats(num_pictures_found=4), IterationStats(pictures=pictures))
    logger.record(SchedulerStats(num_pictures_encoded=1, encoding_seconds=0.7), IterationStats())
    values = scrape(registry)

    def value(name: str, **labels: str) -> float:
        labels |= {"model_name": "small", "engine": "0"}
        return values[f"fairlead:{name}", tuple(sorted(labels.items()))]

    outcomes = [
        value("pictures_total", outcome=outcome) for outcome in ("processed", "remembered", "refused")
    ]
    assert outcomes == [4, 6, 2]
    assert [value("pictures_needed_total", source=source) for source in ("encoder", "cache")] == [1, 8]
    assert value("picture_seconds_count", stage="process") == 4
    assert value("picture_seconds_bucket", stage="process", le="0.05") == 2
    assert value("picture_seconds_count", stage="encode") == 1
    assert value("picture_seconds_sum", stage="encode") == pytest.approx(0.7)


def test_prometheus_serves_the_metric_names_of_older_dashboards() -> None:
    registry = CollectorRegistry()
    PrometheusStatLogger(a_config(), registry=registry).record(SchedulerStats(kv_cache_usage=0.5), STEP)
    values = scrape(registry)
    assert values[key("gpu_cache_usage_perc")] == values[key("kv_cache_usage_perc")] == 0.5
    assert values[key("time_per_output_token_seconds_bucket", le="0.025")] == 1
    assert values[key("time_per_output_token_seconds_sum")] == values[key("inter_token_latency_seconds_sum")]


def test_engines_in_one_process_share_metrics_and_differ_by_label() -> None:
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


def test_request_aborted_before_its_first_token_is_counted() -> None:
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
def test_token_buckets_grow_to_the_context_length(longest: int, buckets: list[int]) -> None:
    assert token_buckets(longest) == buckets


def test_logging_writes_one_line_per_interval_of_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine_server.telemetry.loggers")
    times = iter([0.0, 5.0, 9.0, 100.0, 102.0])
    logger = LoggingStatLogger(a_config(), clock=lambda: next(times))
    for _ in range(3):
        state = SchedulerStats(num_running=2, kv_cache_usage=0.5, prefix_cache_queries=8, prefix_cache_hits=2)
        logger.record(state, STEP)
    assert not caplog.messages
    # Idle from 9 to 100: the line covers only the nine seconds of work.
    logger.record(SchedulerStats(), STEP)
    assert caplog.messages == [
        "engine 0: prompt 2.3 tok/s, generation 1.0 tok/s, running 2, waiting 0, KV use 50.0 %, prefix hits 25.0 %"
    ]
    logger.record(SchedulerStats(num_waiting=5), STEP)
    logger.log()
    assert "generation 3.0 tok/s, running 0, waiting 5" in caplog.messages[1]
    logger.log()
    assert len(caplog.messages) == 2


def a_speculating_config() -> EngineConfig:
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    return msgspec.structs.replace(a_config(), speculative_config=config)


DRAFTS = SchedulerStats(num_drafts=2, num_draft_tokens=5, num_accepted_tokens=3, accepted_per_position=[2, 1])


def test_prometheus_counts_drafts_and_those_accepted_by_position() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_speculating_config(), registry=registry)
    for stats in (DRAFTS, SchedulerStats(), DRAFTS):
        logger.record(stats, None)

    values = scrape(registry)
    assert values[key("spec_decode_num_drafts_total")] == 4
    assert values[key("spec_decode_num_draft_tokens_total")] == 10
    assert values[key("spec_decode_num_accepted_tokens_total")] == 6
    accepted = [
        values[key("spec_decode_num_accepted_tokens_per_pos_total", position=str(i))] for i in range(3)
    ]
    assert accepted == [4, 2, 0]


def test_metrics_of_drafts_are_exported_with_speculative_decoding_alone() -> None:
    registry = CollectorRegistry()
    PrometheusStatLogger(a_config(), registry=registry).record(SchedulerStats(), STEP)

    assert not [name for name, _ in scrape(registry) if "spec_decode" in name]


def test_drafts_of_an_engine_are_counted(tiny_llama: Path, finish, tiny_params) -> None:
    registry = CollectorRegistry()
    arguments = EngineArgs(
        model=str(tiny_llama), served_model_name="small", dtype="float32", skip_tokenizer_init=True, max_num_seqs=1,
        num_gpu_blocks_override=32,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
    )  # fmt: skip
    factory = partial(PrometheusStatLogger, registry=registry)
    engine = LLMEngine.from_engine_args(arguments, stat_loggers={"prometheus": factory})
    repetitive = {"prompt_token_ids": [5, 6, 7] * 9}
    engine.add_request("one", repetitive, tiny_params(max_tokens=200, ignore_eos=True))
    finish(engine)

    values = scrape(registry)
    requests, drafts, accepted = (
        values[key(f"spec_decode_num_{name}_total")] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    by_position = [
        values[key("spec_decode_num_accepted_tokens_per_pos_total", position=str(position))]
        for position in range(3)
    ]
    assert 0 < requests <= drafts <= 3 * requests
    assert sum(by_position) == accepted <= drafts
    assert by_position == sorted(by_position, reverse=True)
    assert values[key("generation_tokens_total")] == 200


def test_log_line_has_the_acceptance_of_drafts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine_server.telemetry.loggers")
    times = iter([0.0, 1.0, 2.0, 3.0])
    logger = LoggingStatLogger(a_speculating_config(), clock=lambda: next(times))
    for stats in (DRAFTS, DRAFTS):
        logger.record(stats, STEP)
    logger.log()
    for stats in (SchedulerStats(), SchedulerStats()):
        logger.record(stats, STEP)
    logger.log()

    assert caplog.messages[0].endswith("drafts accepted 60.0 %, mean acceptance length 2.50")
    assert caplog.messages[1].endswith("drafts accepted 0.0 %, mean acceptance length 1.00")


def test_stat_logger_without_record_cannot_be_created() -> None:
    class Silent(StatLoggerBase):
        def __init__(self, config: object, engine_index: int = 0) -> None: ...

    with pytest.raises(TypeError, match="record"):
        Silent(a_config())  # type: ignore[abstract]


def test_scheduler_stats_cross_a_process_boundary() -> None:
    stats = SchedulerStats(num_running=3, kv_cache_usage=0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=SchedulerStats) == stats


def test_prometheus_reports_gpu_memory_by_use_and_counts_graph_replays() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_config(), registry=registry)
    state = SchedulerStats(num_tokens=3, replayed=True, weight_bytes=16, cache_bytes=70, free_bytes=8)
    for now in (state, state, msgspec.structs.replace(state, replayed=False), SchedulerStats(free_bytes=90)):
        logger.record(now, None)
    names = {"model_name": "small", "engine": "0"}
    for name, label, expected in (
        ("gpu_memory_bytes", "use", {"weights": 0, "kv_cache": 0, "free": 90}),
        ("steps_total", "run", {"graph": 2, "eager": 1}),
    ):
        exposed = {
            value: registry.get_sample_value(f"fairlead:{name}", names | {label: value}) for value in expected
        }
        assert exposed == expected


def test_every_metric_reports_the_requests_that_were_sent(tiny_llama: Path, finish, tiny_params) -> None:
    registry = CollectorRegistry()
    arguments = EngineArgs(
        model=str(tiny_llama), served_model_name="small", dtype="float32", skip_tokenizer_init=True, max_num_seqs=3,
        num_gpu_blocks_override=32, max_num_batched_tokens=64, max_queue=1,
    )  # fmt: skip
    factory = partial(PrometheusStatLogger, registry=registry)
    engine = LLMEngine.from_engine_args(arguments, stat_loggers={"prometheus": factory})

    def add(name: str, prompt: list[int], **options) -> None:
        engine.add_request(name, {"prompt_token_ids": prompt}, tiny_params(ignore_eos=True, **options))

    began = time.monotonic()
    add("one", [5] * 40, max_tokens=5)
    finish(engine)
    add("again", [5] * 40, max_tokens=1)  # two blocks of its prompt are in the cache
    finish(engine)
    add("pair", list(range(10, 30)), n=2, max_tokens=3)
    add("first", [7] * 9, max_tokens=30)
    add("waits", [8] * 9, max_tokens=None)
    with pytest.raises(QueueFullError):
        add("too many", [8] * 9)
    engine.step()
    values = scrape(registry)
    assert values[key("num_requests_running")] == 3
    assert values[key("num_requests_waiting")] == 1
    assert values[key("num_requests_waiting_by_reason", reason="capacity")] == 1
    assert values[key("num_requests_waiting_by_reason", reason="deferred")] == 0
    assert values[key("kv_cache_usage_perc")] == values[key("gpu_cache_usage_perc")] == 4 / 32
    engine.abort_request("waits")
    finish(engine)
    spent = time.monotonic() - began

    values = scrape(registry)
    exposed = {name.removeprefix("vllm:") for name, _ in values if name.startswith("vllm:")}
    seen = set()

    def reports(name: str, expected: float, **labels: str) -> None:
        seen.add(name)
        assert values[key(name, **labels)] == pytest.approx(expected), name

    def observed(name: str, *numbers: float) -> None:
        """Check a histogram of exactly these numbers, bucket by bucket."""
        reports(f"{name}_count", len(numbers))
        reports(f"{name}_sum", sum(numbers))
        for sample, labels in values:
            if sample == f"vllm:{name}_bucket":
                at_most = float(dict(labels)["le"])
                assert values[sample, labels] == sum(number <= at_most for number in numbers)
        seen.update((f"{name}_bucket", f"{name}_created"))

    def timed(name: str, count: int) -> None:
        """Check a histogram of `count` durations, none longer than the whole run."""
        reports(f"{name}_count", count)
        assert 0 <= values[key(f"{name}_sum")] <= spent * count
        seen.update((f"{name}_sum", f"{name}_bucket", f"{name}_created"))

    cached = 32
    prompts, outputs = (40, 40, 20, 20, 9), (5, 1, 3, 3, 30)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
    ):
        reports(name, 0)
    reports("engine_sleep_state", 1, sleep_state="awake")
    reports("engine_sleep_state", 0, sleep_state="weights_offloaded")
    reports("num_requests_waiting_by_reason", 0, reason="capacity")
    reports("num_preemptions_total", 0)
    reports("prompt_tokens_total", sum(prompts))
    reports("generation_tokens_total", sum(outputs))
    reports("prefix_cache_queries_total", sum(prompts))
    for name in ("prefix_cache_hits_total", "prompt_tokens_cached_total"):
        reports(name, values[key("prompt_tokens_by_source_total", source="local_cache_hit")])
    reports("prompt_tokens_by_source_total", cached + 16, source="local_cache_hit")  # the pair shares a block
    reports("prompt_tokens_by_source_total", sum(prompts) - cached - 16, source="local_compute")
    reports("request_success_total", 5, finished_reason="length")
    reports("request_success_total", 1, finished_reason="abort")
    reports("request_success_total", 0, finished_reason="stop")
    rejections = "vllm:admission_rejections_total", (("model_name", "small"), ("reason", "queue_full"))
    assert values[rejections] == 1
    assert values["vllm:lora_requests_info", tuple(sorted(NO_ADAPTERS.items()))] > 0
    observed("request_prompt_tokens", *prompts, 9)
    observed("request_generation_tokens", *outputs, 0)
    observed("request_prefill_kv_computed_tokens", 40, 8, 20, 4, 9, 9)
    observed("request_params_max_tokens", *outputs)
    observed("request_params_n", 1, 1, 2, 1, 1)
    observed("request_max_num_generation_tokens", 5, 1, 3, 30, 0)
    steps = 5 + 1 + 30
    reports("iteration_tokens_total_count", steps)
    reports("iteration_tokens_total_sum", sum(prompts) + sum(outputs))
    names = {"model_name": "small", "engine": "0"}
    for name in ("step_seconds", "step_host_seconds", "step_device_seconds"):
        labels = tuple(sorted(names.items()))
        assert values[f"fairlead:{name}_count", labels] == steps
        assert 0 < values[f"fairlead:{name}_sum", labels] < spent
    by_run = [
        values["fairlead:steps_total", tuple(sorted((names | {"run": run}).items()))]
        for run in ("eager", "graph")
    ]
    assert sorted(by_run) == [0, steps]  # all are replayed where the CPU kernels are compiled
    for name in ("time_to_first_token_seconds", "request_prefill_time_seconds"):
        timed(name, 5 if "first" in name else 6)
    for name in (
        "e2e_request_latency",
        "request_queue_time",
        "request_inference_time",
        "request_decode_time",
    ):
        timed(f"{name}_seconds", 6)
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        timed(name, sum(outputs) - 5)
    timed("request_time_per_output_token_seconds", 4)
    elsewhere = {"admission_rejections_total", "lora_requests_info", "cache_config_info"}
    unchecked = {name for name in exposed - seen - elsewhere if not name.endswith("_created")}
    assert unchecked == {"iteration_tokens_total_bucket"}


def test_adapters_of_requests_are_labels_of_one_series() -> None:
    registry = CollectorRegistry()
    logger = PrometheusStatLogger(a_config(), registry=registry)
    logger.log_engine_initialized()
    for running, waiting in ((["french"], ["sql", "x"]), (["sql", "x"], []), ([], [])):
        logger.record(SchedulerStats(running_adapters=running, waiting_adapters=waiting), None)
        (found,) = [dict(labels) for name, labels in scrape(registry) if name == "vllm:lora_requests_info"]
        assert found["running_lora_adapters"] == ",".join(running)
        assert found["waiting_lora_adapters"] == ",".join(waiting)
