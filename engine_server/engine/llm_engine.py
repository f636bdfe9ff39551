"""The synchronous engine: add requests, then step until none is left. The core runs in the caller's process."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from transformers import PreTrainedTokenizerBase

from engine_server.config import (
    CacheConfig,
    DecodingConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    LoRAConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    PromptAdapterConfig,
    SchedulerConfig,
    SpeculativeConfig,
    UsageContext,
)
from engine_server.core.debug_state import DebugState
from engine_server.core.engine_core import EngineCore
from engine_server.core.model_runner import ModelRunner
from engine_server.engine.compat import one_prompt, refuse, request_key, request_keys, rpc_arguments
from engine_server.engine.engine_args import EngineArgs
from engine_server.engine.front_end import FrontEnd
from engine_server.engine.input.answer_ends import with_answer_ends
from engine_server.engine.input.picture_start import start_pictures
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import load_tokenizer, model_vocabulary
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.messages import AbortRequests, Call
from engine_server.requests.outputs import Output, PoolingRequestOutput, RequestOutput
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.prompts import INPUT_REGISTRY, InputRegistry, PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.submission import Origin, Submission
from engine_server.telemetry.engine_loggers import StatLoggers
from engine_server.telemetry.loggers import StatLoggerBase

logger = logging.getLogger(__name__)


class LLMEngine:
    """An engine that its caller drives step by step. `from_engine_args` needs fewer arguments.

    executor_class: executes the model; None: the class of `parallel_config`.
    log_stats: log a line of statistics every ten seconds. stat_loggers: a mapping replaces the default ones, a
    sequence adds to them. Only the defaults of input_registry and use_cached_outputs are allowed.

    Raises ValueError for a model or setting that can't be used.
    """

    # Make `step` check the type of its outputs.
    DO_VALIDATE_OUTPUT: ClassVar[bool] = False

    def __init__(
        self,
        model_config: ModelConfig,
        cache_config: CacheConfig,
        parallel_config: ParallelConfig,
        scheduler_config: SchedulerConfig,
        device_config: DeviceConfig,
        load_config: LoadConfig,
        lora_config: LoRAConfig | None,
        speculative_config: SpeculativeConfig | None,
        decoding_config: DecodingConfig | None,
        observability_config: ObservabilityConfig | None,
        prompt_adapter_config: PromptAdapterConfig | None,
        executor_class: type[ModelRunner] | None,
        log_stats: bool,
        usage_context: UsageContext = UsageContext.ENGINE_CONTEXT,
        stat_loggers: StatLoggers | None = None,
        input_registry: InputRegistry = INPUT_REGISTRY,
        use_cached_outputs: bool = False,
    ) -> None:
        refuse(input_registry=input_registry is not INPUT_REGISTRY, use_cached_outputs=use_cached_outputs)
        tokenizer = load_tokenizer(model_config)
        model_config = with_answer_ends(model_config, tokenizer)
        config = EngineConfig(
            model_config, cache_config, parallel_config, scheduler_config, device_config, load_config, lora_config,
            speculative_config, decoding_config or DecodingConfig(), observability_config or ObservabilityConfig(),
            prompt_adapter_config,
        ).with_executor(executor_class)  # fmt: skip
        self._core = EngineCore(config, lambda name, seconds: logger.info("%s: %.1f s", name, seconds))
        pictures, facts = start_pictures(model_config).settled(self._core.facts)
        self.config = config.as_started(facts)
        vocabulary = model_vocabulary(tokenizer, model_config)
        if vocabulary is not None:
            self._core.handle(vocabulary)
        self._front_end = FrontEnd(self.config, tokenizer, vocabulary, log_stats, stat_loggers, pictures)
        logger.info("engine ready for %s", usage_context.value)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: UsageContext = UsageContext.ENGINE_CONTEXT,
        stat_loggers: StatLoggers | None = None,
    ) -> Self:
        return cls(
            **msgspec.structs.asdict(engine_args.create_engine_config()),
            executor_class=None,
            log_stats=not engine_args.disable_log_stats,
            usage_context=usage_context,
            stat_loggers=stat_loggers,
        )

    def add_request(
        self,
        request_id: str | int,
        prompt: PromptType | None = None,
        params: SamplingParams | PoolingParams | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int = 0,
        *,
        inputs: PromptType | None = None,
    ) -> None:
        """Queue a request for the next steps. `arrival_time` is on the monotonic clock.

        Raises InvalidRequestError or QueueFullError, with nothing queued.
        """
        submission = Submission(
            request_key(request_id), one_prompt(prompt, inputs), params or SamplingParams(), arrival_time,
            Origin(lora_request, trace_headers, prompt_adapter_request, priority),
        )  # fmt: skip
        self._front_end.check(submission)
        prepared = self._front_end.prepare(submission)
        if trial := self._front_end.try_grammar(prepared):
            self._front_end.set_grammar(prepared, trial.result())
        if message := self._front_end.add(prepared):
            self._core.handle(message)

    def abort_request(self, request_id: str | int | Iterable[str], internal: bool = False) -> None:
        """End requests immediately; `step` returns no further output of them. Unknown ids are ignored.

        internal: only False is allowed, since callers don't know the engine's internal ids.
        """
        refuse(internal=internal)
        _, aborts = self._front_end.abort(request_keys(request_id))
        self._core.handle(AbortRequests(aborts))

    def step(self) -> list[Output]:
        """Run one step over all requests and return the outputs that are due; [] if no request is in flight."""
        if not self.has_unfinished_requests():
            return []
        message = self._core.outputs()
        for wanted in self._core.scheduler.pictures.take_wanted():
            if (inputs := self._front_end.encoder_inputs(wanted)) is not None:
                self._core.handle(inputs.result())
        outputs, aborts = [], []
        parts = [self._front_end.add_prompt_logprobs(part) for part in self._core.prompt_logprobs()]
        for some_outputs, some_aborts in (*parts, self._front_end.process(message.steps, message.stats)):
            outputs += some_outputs
            aborts += some_aborts
        if aborts:
            self._core.handle(AbortRequests(aborts))
        if self.DO_VALIDATE_OUTPUT:
            for output in outputs:
                if not isinstance(output, RequestOutput | PoolingRequestOutput):
                    raise TypeError(f"an output is a {type(output).__name__}, not a RequestOutput")
        return outputs

    def has_unfinished_requests(self) -> bool:
        return len(self._front_end.requests) > 0

    def has_unfinished_requests_for_virtual_engine(self, virtual_engine: int) -> bool:
        """Return `has_unfinished_requests` of virtual engine 0, the only one. Raises IndexError for another."""
        if virtual_engine != 0:
            raise IndexError(f"virtual_engine is {virtual_engine}; there is only 0")
        return self.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return len(self._front_end.requests)

    def get_input_preprocessor(self) -> Processor:
        return self._front_end.processor

    def get_tokenizer(self, lora_request: LoRARequest | None = None) -> PreTrainedTokenizerBase:
        """Return the tokenizer. Raises ValueError if the engine was made without one."""
        return self._front_end.require_tokenizer(lora_request)

    @property
    def vllm_config(self) -> EngineConfig:
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        return self.config.model_config

    def get_model_config(self) -> ModelConfig:
        return self.config.model_config

    def get_parallel_config(self) -> ParallelConfig:
        return self.config.parallel_config

    def get_scheduler_config(self) -> SchedulerConfig:
        return self.config.scheduler_config

    def get_decoding_config(self) -> DecodingConfig:
        return self.config.decoding_config

    def get_lora_config(self) -> LoRAConfig | None:
        return self.config.lora_config

    def is_tracing_enabled(self) -> bool:
        return self._front_end.traces

    def do_log_stats(
        self,
        scheduler_outputs: None = None,
        model_output: None = None,
        finished_before: None = None,
        skip: None = None,
    ) -> None:
        """Make the stat loggers log now instead of at the next interval; only None is allowed for the parameters."""
        refuse(
            scheduler_outputs=scheduler_outputs,
            model_output=model_output,
            finished_before=finished_before,
            skip=skip,
        )
        self._front_end.loggers.log()

    def add_logger(self, logger_name: str, logger: StatLoggerBase) -> None:
        """Add a stat logger. Raises KeyError if the name is taken."""
        self._front_end.loggers.add(logger_name, logger)

    def remove_logger(self, logger_name: str) -> None:
        """Remove a stat logger; the default ones are "prometheus" and "logging". Raises KeyError."""
        self._front_end.loggers.remove(logger_name)

    def check_health(self) -> None:
        """Do nothing: the core runs in the caller's process."""

    def debug_state(self) -> DebugState:
        """Return a copy of the core's state, for tests and bug reports."""
        return self._core.debug_state()

    def check_integrity(self) -> None:
        """Assert that the core's requests, rows and blocks agree, for tests."""
        self._core.check_integrity()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache. Returns False and changes nothing while requests hold blocks.

        reset_running_requests: preempt requests that hold blocks first; they are computed again.
        reset_connector: only False is allowed, since there is no connector.
        """
        refuse(reset_connector=reset_connector)
        return bool(self._call("reset_prefix_cache", reset_running_requests))

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the executor on every rank, and return their results.

        timeout: only None is allowed. Raises RuntimeError if a call fails.
        """
        refuse(timeout=timeout)
        return list(self._call("collective_rpc", *rpc_arguments(method, args, kwargs)))

    def sleep(self, level: int = 1) -> None:
        """Free the KV cache; level 1 moves a GPU's weights to the host, level 2 drops them. Requests wait."""
        self._call("sleep", level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake "weights", "kv_cache", or both; once both are awake, requests continue where they were."""
        self._call("wake_up", tags)

    def is_sleeping(self) -> bool:
        return bool(self._call("is_sleeping"))

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter into memory, so that its first request needn't wait. Raises RuntimeError if it can't be."""
        return bool(self._call("add_lora", self._front_end.adapter_call(lora_request)))

    def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter from memory; return False if it isn't there. Requests that have it go on."""
        return bool(self._call("remove_lora", lora_id))

    def list_loras(self) -> set[int]:
        """Return the ids of the LoRA adapters in memory."""
        return set(self._call("list_loras"))

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory and in the device's slot. Raises RuntimeError if no slot would be left."""
        return bool(self._call("pin_lora", lora_id))

    def add_prompt_adapter(self, prompt_adapter_request: PromptAdapterRequest) -> bool:
        """Read an adapter into memory, so that its first request needn't wait. Raises RuntimeError if it can't be."""
        named = self._front_end.prompt_adapter_call(prompt_adapter_request)
        return bool(self._call("add_prompt_adapter", named))

    def remove_prompt_adapter(self, prompt_adapter_id: int) -> bool:
        """Remove an adapter from memory; return False if it isn't there. Requests that have it go on."""
        return bool(self._call("remove_prompt_adapter", prompt_adapter_id))

    def list_prompt_adapters(self) -> set[int]:
        """Return the ids of the prompt adapters in memory."""
        return set(self._call("list_prompt_adapters"))

    def start_profile(self) -> None:
        """Trace with torch.profiler, into the folder `torch_profiler_dir`."""
        self._call("start_profile")

    def stop_profile(self) -> None:
        """Write the trace."""
        self._call("stop_profile")

    def _call(self, method: str, *args: Any) -> Any:
        """Run an operation of the core and return its result. Raises RuntimeError if it fails."""
        returned = self._core.operations.run(Call(0, method, list(args)))
        while returned is None:
            self._core.operations.wait()
            returned = next(iter(self._core.operations.finished()), None)
        if not self._core.has_work:
            self._front_end.loggers.record(
                self._core.outputs().stats, None
            )  # no step will report the new state
        return returned.result()
