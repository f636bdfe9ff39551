"""What both engines have on the caller's side of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine_server.config import EngineConfig
from engine_server.engine.compat import refuse, request_key
from engine_server.engine.input.admission import check_priority, check_trace_headers
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import backend_of
from engine_server.engine.output.output_processor import OutputProcessor, fan_out
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import InvalidRequestError, QueueFullError
from engine_server.requests.messages import AddRequest, StepOutputs
from engine_server.requests.outputs import Output
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.prompts import PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import LoggingStatLogger, PrometheusStatLogger, StatLoggerBase
from engine_server.telemetry.stats import IterationStats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LoggerFactory = Callable[[EngineConfig, int], StatLoggerBase]  # a class is one
StatLoggers = Mapping[str, StatLoggerBase | LoggerFactory] | Sequence[StatLoggerBase | LoggerFactory]


class FrontEnd:
    """Tokeniser, requests' states and stat loggers."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: PreTrainedTokenizerBase | None,
        log_stats: bool,
        stat_loggers: StatLoggers | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config.scheduler_config
        self.processor = Processor(config.model_config, self.tokenizer)
        self.requests = OutputProcessor(
            backend_of(self.tokenizer) if self.tokenizer else None, config.model_config.eos_token_ids
        )
        self.traces = config.observability_config.otlp_traces_endpoint is not None
        self.loggers = choose_loggers(config, log_stats, stat_loggers)
        for logger in self.loggers.values():
            logger.log_engine_initialized()

    def require_tokenizer(self, lora_request: LoRARequest | None) -> PreTrainedTokenizerBase:
        """Raises ValueError where the engine was made without one."""
        refuse(lora_request=lora_request)
        if self.tokenizer is None:
            raise ValueError("the engine has no tokenizer: it was made with skip_tokenizer_init")
        return self.tokenizer

    def record(self, scheduler_stats: SchedulerStats | None, stats: IterationStats | None) -> None:
        for logger in self.loggers.values():
            logger.record(scheduler_stats, stats)

    def add_logger(self, name: str, logger: StatLoggerBase) -> None:
        """Raises KeyError where the name is taken."""
        if name in self.loggers:
            raise KeyError(f"a stat logger {name!r} is there already")
        self.loggers[name] = logger

    def log_stats(self) -> None:
        for logger in self.loggers.values():
            logger.log()

    def admit(
        self,
        request_id: str | int,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int = 0,
    ) -> list[AddRequest]:
        """Check a request and keep its state; what the core must hear: nothing, where what is resumed has ended.

        Raises InvalidRequestError, and QueueFullError.
        """
        refuse(
            lora_request=lora_request,
            trace_headers=trace_headers if not self.traces else None,
            prompt_adapter_request=prompt_adapter_request,
            priority=priority if self.config.policy == "fcfs" else 0,
        )
        priority = check_priority(priority)
        trace_headers = check_trace_headers(trace_headers)
        key = request_key(request_id)
        self._refuse_overflow()
        request, text = self.processor.process(key, prompt, params, arrival_time)
        request.priority = priority
        if params.timeout is not None:
            request.deadline = request.arrival + params.timeout
        children = fan_out(request)
        if key in self.requests or any(child.request_id in self.requests for child in children):
            raise InvalidRequestError(f"a request with the id {key!r} is under way", "request_id")
        return children if self.requests.add(key, children, request.params, text, trace_headers) else []

    def _refuse_overflow(self) -> None:
        config, count = self.config, len(self.requests)
        if config.max_queue is not None and count >= config.max_num_seqs + config.max_queue:
            self.record(None, IterationStats(num_rejected=1))
            raise QueueFullError(f"{count} requests are under way, as many as may be; try again soon")

    def digest(self, outputs: StepOutputs) -> tuple[list[Output], list[str]]:
        """What callers get from a step, and which requests a stop string ended."""
        stats = IterationStats()
        given, stopped = self.requests.process(outputs.steps, stats)
        self.record(outputs.stats, stats)
        return given, stopped

    def abort(self, request_ids: Iterable[str]) -> tuple[list[Output], list[str]]:
        """The last outputs of those that were under way, and what the core must abort."""
        stats = IterationStats()
        outputs, unfinished = self.requests.abort(request_ids, stats)
        self.record(None, stats)
        return outputs, unfinished


def choose_loggers(
    config: EngineConfig, log_stats: bool, stat_loggers: StatLoggers | None
) -> dict[str, StatLoggerBase]:
    """By name. A mapping replaces the default loggers, a sequence adds to them; both take instances or classes."""
    chosen: dict[str, StatLoggerBase | LoggerFactory]
    if isinstance(stat_loggers, Mapping):
        chosen = dict(stat_loggers)
    else:
        chosen = {"prometheus": PrometheusStatLogger}
        if log_stats:
            chosen["logging"] = LoggingStatLogger
        chosen |= {f"added {number}": logger for number, logger in enumerate(stat_loggers or ())}
    if config.observability_config.otlp_traces_endpoint is not None:
        from engine_server.telemetry.tracing import TracingStatLogger  # needs what not everybody installs

        chosen["tracing"] = TracingStatLogger
    return {
        name: logger if isinstance(logger, StatLoggerBase) else logger(config, 0)
        for name, logger in chosen.items()
    }
