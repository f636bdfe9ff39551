"""OpenTelemetry spans: one for each request with trace headers, exported when it ends.

Attributes follow the semantic conventions for generative AI, and vLLM's names beyond them. Prompts and outputs are
never exported.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import StatLoggerBase
from engine_server.telemetry.stats import EndedRequest, IterationStats

if TYPE_CHECKING:
    from engine_server.config import EngineConfig

# Sampling parameters that become attributes.
PARAMETERS = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


class TracingStatLogger(StatLoggerBase):
    """An exporter of spans to `otlp_traces_endpoint`, in batches, from its own thread."""

    def __init__(self, config: EngineConfig, engine_index: int = 0) -> None:
        self._model = config.model_config.served_model_name[0]
        name = os.environ.get("OTEL_SERVICE_NAME", "fairlead")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        exporter = OTLPSpanExporter(config.observability_config.otlp_traces_endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("engine_server.engine")

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        for request in iteration_stats.ended if iteration_stats else ():
            if request.trace_headers is not None:
                self._export(request)

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        self._provider.force_flush()

    def _export(self, request: EndedRequest) -> None:
        """Export the span of a request that has just ended."""
        end = time.time_ns()
        duration = max(completion.e2e for completion in request.completions)
        first = min(request.completions, key=lambda completion: completion.queue + completion.prefill)
        parameters = {name: getattr(request.params, name, None) for name in PARAMETERS}
        span = self._tracer.start_span(
            f"text_completion {self._model}",
            context=TraceContextTextMapPropagator().extract(request.trace_headers),
            kind=SpanKind.SERVER,
            start_time=end - int(duration * 1e9),
            attributes={
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "fairlead",
                "gen_ai.request.model": self._model,
                "gen_ai.request.choice.count": request.params.n,
                **{
                    f"gen_ai.request.{name}": value for name, value in parameters.items() if value is not None
                },
                "gen_ai.response.id": request.request_id,
                "gen_ai.response.finish_reasons": [completion.reason for completion in request.completions],
                "gen_ai.response.time_to_first_chunk": first.queue + first.prefill,
                "gen_ai.usage.input_tokens": first.num_prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": first.num_cached_tokens,
                "gen_ai.usage.output_tokens": sum(one.num_generation_tokens for one in request.completions),
                "gen_ai.latency.time_in_queue": first.queue,
                "gen_ai.latency.time_in_model_prefill": first.prefill,
                "gen_ai.latency.time_in_model_decode": first.decode,
                "gen_ai.latency.e2e": duration,
            },
        )
        span.end(end)
