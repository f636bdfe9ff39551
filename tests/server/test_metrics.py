"""The names of the engine's metrics, by which dashboards and alerts query them."""

from typing import Any

import openai
import pytest
from queried_metrics import exported_metrics, queried_metrics

from engine_server.telemetry.metrics import of_speculation

HISTOGRAMS = ("_bucket", "_sum", "_count")
# The metrics that vLLM's public Grafana dashboard queries: examples/observability/prometheus_grafana/grafana.json of
# vllm-project/vllm at commit 4b5c627c23e6690b8987100d1cbf78e34ac14bf9.
VLLM_DASHBOARD = {
    *(f"vllm:e2e_request_latency_seconds{suffix}" for suffix in HISTOGRAMS),
    *(f"vllm:inter_token_latency_seconds{suffix}" for suffix in HISTOGRAMS),
    *(f"vllm:time_to_first_token_seconds{suffix}" for suffix in HISTOGRAMS),
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
}
# Earlier versions of it.
EARLIER_VLLM_DASHBOARDS = {
    *(f"vllm:time_per_output_token_seconds{suffix}" for suffix in HISTOGRAMS),
    "vllm:gpu_cache_usage_perc",
}
ENGINE_PREFIXES = ("vllm:", "fairlead:", "http_", "process_")


@pytest.fixture(scope="module")
def exported(scripted: Any, scripted_client: openai.OpenAI) -> set[str]:
    """The names of the metrics of an engine that has answered a request."""
    scripted_client.completions.create(model="smollm2", prompt="Hello", max_tokens=2)
    return exported_metrics(scripted.get("/metrics").body.decode())


@pytest.mark.parametrize("name", sorted(VLLM_DASHBOARD | EARLIER_VLLM_DASHBOARDS))
def test_metric_of_vllms_dashboard_is_exported(exported: set[str], name: str) -> None:
    assert name in exported


def test_every_metric_of_engines_in_dashboards_and_alerts_is_exported(exported: set[str]) -> None:
    of_drafts = {f"{metric.name}_total" for metric in of_speculation(1)}  # exported with speculative decoding
    assert queried_metrics(*ENGINE_PREFIXES) <= exported | of_drafts


def test_label_of_vllms_dashboard_is_the_first_served_name(scripted: Any, exported: set[str]) -> None:
    page = scripted.get("/metrics").body.decode()
    assert 'vllm:num_requests_running{engine="0",model_name="smollm2"}' in page
