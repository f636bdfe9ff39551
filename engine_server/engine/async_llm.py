"""The asynchronous engine: many callers, and one core in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from engine_server.config import (
    DecodingConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    UsageContext,
)
from engine_server.contract.base.caller import ReportedCaller
from engine_server.engine.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence, all_or_none
from engine_server.engine.compat import one_prompt, refuse, request_key, request_keys
from engine_server.engine.core_operations import CoreOperations
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.engine.front_end import FrontEnd
from engine_server.engine.input.answer_ends import with_answer_ends
from engine_server.engine.input.picture_start import start_pictures
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.template_end import TemplateEnd, rendered_end
from engine_server.engine.input.tokenizer import load_tokenizer, model_vocabulary
from engine_server.engine.loop import garbage
from engine_server.engine.loop.async_stream import AsyncStream
from engine_server.engine.loop.core_process import CoreProcess, OnLoad, OnPhase
from engine_server.engine.loop.operations import Operations, PauseMode
from engine_server.engine.loop.output_loop import OutputLoop
from engine_server.engine.loop.request_streams import RequestStreams
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import EngineDeadError, EngineShutDownError
from engine_server.requests.outputs import CompletionOutput, Output, PoolingRequestOutput, RequestOutput
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.prompts import INPUT_REGISTRY, InputRegistry, PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.requests.submission import Origin, Submission
from engine_server.telemetry.engine_loggers import StatLoggers
from engine_server.telemetry.loggers import StatLoggerBase

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.core.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class AsyncLLM(CoreOperations):
    """An engine for an event loop. A request passes the processor, the core, the output processor and its stream.

    The constructor blocks until the core has loaded the model, and calls `on_phase(name, seconds)` at the end of each
    phase of the start, and `on_load(share)` while weights are loaded. It may run in any thread: the engine belongs to
    the event loop that first uses it. The core ends when the engine is garbage collected. `core` may have been started
    earlier, since its imports take seconds. `template_end` finds the token with which the chat template ends an answer.

    Raises ValueError for a model or setting that can't be used, EngineDeadError if the core can't start.
    """

    def __init__(
        self,
        vllm_config: EngineConfig,
        executor_class: type[ModelRunner] | None,
        log_stats: bool,
        usage_context: UsageContext = UsageContext.ENGINE_CONTEXT,
        stat_loggers: StatLoggers | None = None,
        input_registry: InputRegistry = INPUT_REGISTRY,
        use_cached_outputs: bool = False,
        log_requests: bool = True,
        start_engine_loop: bool = True,
        on_phase: OnPhase | None = None,
        on_load: OnLoad | None = None,
        core: CoreProcess | None = None,
        template_end: TemplateEnd = rendered_end,
    ) -> None:
        refuse(input_registry=input_registry is not INPUT_REGISTRY, use_cached_outputs=use_cached_outputs)
        config = vllm_config.with_executor(executor_class)
        self.log_requests = log_requests
        self._start_engine_loop = start_engine_loop
        self._core = core or CoreProcess()
        self._finalizer = weakref.finalize(self, self._core.shutdown)
        try:
            self._core.configure(config)
            tokenizer = load_tokenizer(config.model_config)  # while the core loads
            model = with_answer_ends(config.model_config, tokenizer, template_end)
            config = msgspec.structs.replace(config, model_config=model)
            vocabulary = model_vocabulary(tokenizer, model)
            if vocabulary is not None:
                self._core.send(vocabulary)
            started = start_pictures(model)
            garbage.settle()
            pictures, facts = started.settled(self._core.wait_until_ready(on_phase, on_load).facts)
            self.config = config.as_started(facts)
            self._front_end = FrontEnd(self.config, tokenizer, vocabulary, log_stats, stat_loggers, pictures)
        except BaseException:
            if self._finalizer.detach():
                self._core.shutdown()
            raise
        self._requests = RequestStreams(self._front_end, self._core, log_requests)
        self._operations = Operations(self._core, self._requests)
        self._loop = OutputLoop(self._core, self._requests)
        logger.info("engine ready for %s", usage_context.value)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        engine_config: EngineConfig | None = None,
        start_engine_loop: bool = True,
        usage_context: UsageContext = UsageContext.ENGINE_CONTEXT,
        stat_loggers: StatLoggers | None = None,
        on_phase: OnPhase | None = None,
        on_load: OnLoad | None = None,
        core: CoreProcess | None = None,
        template_end: TemplateEnd = rendered_end,
    ) -> Self:
        """Make an engine from its arguments; `engine_config` replaces the config that they resolve to."""
        core = core or CoreProcess()  # imports while this process reads the model's configuration
        try:
            config = engine_config or engine_args.create_engine_config()
        except BaseException:
            core.shutdown()
            raise
        return cls(
            config,
            executor_class=None,
            log_stats=not engine_args.disable_log_stats,
            usage_context=usage_context,
            log_requests=engine_args.enable_log_requests,
            start_engine_loop=start_engine_loop,
            stat_loggers=stat_loggers,
            on_phase=on_phase,
            on_load=on_load,
            core=core,
            template_end=template_end,
        )

    def generate(
        self,
        prompt: PromptType | None = None,
        sampling_params: SamplingParams | None = None,
        request_id: str | int = "",
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        *,
        inputs: PromptType | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield a request's outputs as they arrive; the last one is `finished`.

        Whoever stops iterating aborts the request. Raises InvalidRequestError, QueueFullError or ShareUsedError before
        anything is queued, and EngineDeadError if the core ends before the request does.
        """
        refuse(data_parallel_rank=data_parallel_rank)
        outputs = self.outputs(
            Submission(
                request_key(request_id), one_prompt(prompt, inputs), sampling_params or SamplingParams(), None,
                Origin(lora_request, trace_headers, prompt_adapter_request, priority),
            )
        )  # fmt: skip
        return cast(AsyncGenerator[RequestOutput, None], outputs)

    def encode(
        self,
        prompt: PromptType | None = None,
        pooling_params: PoolingParams | None = None,
        request_id: str | int = "",
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        *,
        inputs: PromptType | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Yield a pooling model's one output for the prompt; for the task embed it is an EmbeddingRequestOutput.

        In all other respects it works like `generate`.
        """
        refuse(data_parallel_rank=data_parallel_rank)
        outputs = self.outputs(
            Submission(
                request_key(request_id), one_prompt(prompt, inputs), pooling_params or PoolingParams(), None,
                Origin(lora_request, trace_headers, None, priority),
            )
        )  # fmt: skip
        return cast(AsyncGenerator[PoolingRequestOutput[Any], None], outputs)

    async def beam_search(
        self,
        prompt: PromptType,
        request_id: str | int,
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one output: the beam_width best completions, the best first. See BeamSearchParams."""
        origin = Origin(lora_request, prompt_adapter_request=prompt_adapter_request)
        yield await self.search(request_key(request_id), prompt, params, origin)

    async def search(
        self,
        request_id: str,
        prompt: PromptType,
        params: BeamSearchParams,
        origin: Origin,
        seconds: float | None = None,
    ) -> RequestOutput:
        """Return the result of a beam search, each of whose steps is a request of its own.

        seconds: after which it ends with the best beams so far, and the finish reason `timeout`.
        """
        search = BeamSearch(
            prompt,
            params,
            self._front_end.processor,
            self._front_end.num_virtual(origin.prompt_adapter_request),
        )
        deadline = None if seconds is None else time.monotonic() + seconds

        async def complete(number: int, beam: BeamSearchSequence, step: SamplingParams) -> CompletionOutput:
            beam_prompt: PromptType = {"prompt_token_ids": beam.tokens}
            stream = self.outputs(Submission(f"{request_id}-{number}", beam_prompt, step, origin=origin))
            async with contextlib.aclosing(stream):
                output = cast(RequestOutput, [output async for output in stream][-1])
                return output.outputs[0]

        while search.beams:
            step = search.step_params
            if deadline is not None:
                left = max(deadline - time.monotonic(), 1e-6)  # it takes a number over 0
                step = msgspec.structs.replace(step, timeout=left)
            search.advance(await all_or_none(complete(*item, step) for item in enumerate(search.beams)))
        return search.output(request_id)

    async def add_request(
        self,
        request_id: str | int,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncStream:
        """Queue a request and return the stream of its outputs. `arrival_time` is on the monotonic clock.

        data_parallel_rank: only None and 0 are allowed, since there is one replica.
        """
        refuse(data_parallel_rank=data_parallel_rank)
        return await self.submit(
            Submission(
                request_key(request_id), one_prompt(prompt, None), params, arrival_time,
                Origin(lora_request, trace_headers, prompt_adapter_request, priority),
            )
        )  # fmt: skip

    async def submit(self, submission: Submission) -> AsyncStream:
        """Queue a request and return the stream of its outputs."""
        self._require_loop()
        prepared = await self._requests.prepare(submission)
        self._require_loop()  # the engine may have died while a long prompt was tokenized
        return self._requests.add(prepared)

    async def outputs(self, submission: Submission) -> AsyncGenerator[Output, None]:
        """Yield a request's outputs as `generate` does."""
        stream = await self.submit(submission)
        try:
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            if self._requests.get(submission.request_id) is stream:
                self._requests.abort([submission.request_id])

    async def abort(self, request_id: str | int | Iterable[str], internal: bool = False) -> None:
        """End requests immediately; each stream gets a last output with the reason abort. Unknown ids are ignored.

        internal: only False is allowed, since callers don't know the engine's internal ids.
        """
        refuse(internal=internal)
        self._requests.abort(request_keys(request_id))

    def start_background_loop(self) -> None:
        """Start to handle the core's messages in the running event loop."""
        if self._loop.dead_error is not None:
            raise self._loop.dead_error
        if self.is_running:
            raise RuntimeError("the engine's loop is already running")
        self._loop.start(self.run_engine_loop(weakref.ref(self)))

    def shutdown_background_loop(self) -> None:
        """Stop handling the core's messages; streams wait until a new loop or `engine_step` handles them."""
        self._loop.stop()

    @staticmethod
    async def run_engine_loop(engine_ref: weakref.ref[AsyncLLM]) -> None:
        """Handle the core's messages until the engine ends or is garbage collected."""
        while (engine := engine_ref()) and not engine.errored:
            loop = engine._loop
            del engine
            await loop.arrive()  # holds no reference to the engine
            if engine := engine_ref():
                with contextlib.suppress(EngineDeadError):  # raised in every stream
                    await engine.engine_step()

    async def engine_step(self) -> bool:
        """Handle one message of the core, as the background loop does; return True if requests remain.

        Raises EngineDeadError when the core has ended.
        """
        await self._loop.step()
        return len(self._requests) > 0

    @property
    def is_running(self) -> bool:
        return self._loop.running

    @property
    def is_stopped(self) -> bool:
        return self._loop.stopped

    @property
    def errored(self) -> bool:
        return self._loop.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError:
        return self._loop.dead_error or EngineDeadError("the engine is not dead")

    @property
    def core_pid(self) -> int:
        return self._core.pid

    @property
    def core_stalled(self) -> float:
        """The seconds in which the core has made no progress, which it makes while idle too."""
        return self._core.stalled

    async def check_health(self) -> None:
        """Raise EngineDeadError if the core has ended, or made no progress for `hang_timeout` seconds."""
        if self._loop.dead_error is not None:
            raise self._loop.dead_error
        self._core.check(self.config.observability_config.hang_timeout)

    def check_room(self, num_completions: int = 1) -> None:
        """Raise QueueFullError if so many more completions don't fit the queue of `max_queue`.

        Raises InvalidRequestError if they would not fit an empty one either.
        """
        self._front_end.check_room(num_completions)

    async def find_faults(
        self,
        grammar: StructuredOutputsParams,
        parts: Callable[[], Sequence[StructuredOutputsParams]],
        caller: ReportedCaller | None = None,
    ) -> Mapping[int, str]:
        """Try the grammar of a request that follows; return why parts of it can't be used, by index. {} if it can.

        parts: returns grammars of the parts; called only if the grammar can't be used. All share the limits of one
        trial; at a limit no part is named. Raises InvalidRequestError, QueueFullError, ShareUsedError.
        """
        verdict = await asyncio.wrap_future(self._front_end.start_trial(grammar, caller))
        if verdict.error is not None:
            verdict = await asyncio.wrap_future(self._front_end.start_trial(grammar, caller, parts()))
        return verdict.faults

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Run no step until `resume_generation`; new requests wait.

        mode: abort the requests in flight, wait for their end, or keep them unchanged. The prefix cache is emptied
        unless they are kept. A pause that is still waiting ends without effect if it is cancelled or resumed.
        """
        self._require_loop()
        await self._operations.pause(mode, clear_cache)

    async def resume_generation(self) -> None:
        self._require_loop()
        await self._operations.resume()

    async def is_paused(self) -> bool:
        return self._operations.paused

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Return once no request is in flight. Raises TimeoutError after `drain_timeout` seconds."""
        async with asyncio.timeout(drain_timeout):
            await self._requests.wait_for_all()

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None if the engine was made without one."""
        return self._front_end.tokenizer

    @property
    def refuses_pictures(self) -> str:
        """Why prompts have no pictures; empty if they may have some."""
        return self._front_end.refuses_pictures

    @property
    def token_bytes(self) -> Sequence[bytes] | None:
        """The bytes that each token adds to a text; None for an engine that can't follow grammars."""
        return self._front_end.token_bytes

    @property
    def token_texts(self) -> TokenTexts:
        """The text and the bytes of each token, as log-probabilities have them."""
        return self._front_end.token_texts

    async def get_tokenizer(self, lora_request: LoRARequest | None = None) -> PreTrainedTokenizerBase:
        """Return the tokenizer. Raises ValueError if the engine was made without one."""
        return await asyncio.to_thread(self._front_end.require_tokenizer, lora_request)

    @property
    def vllm_config(self) -> EngineConfig:
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        return self.config.model_config

    async def get_model_config(self) -> ModelConfig:
        return self.config.model_config

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return ("generate",), or the pooling tasks that the model can."""
        return self.config.model_config.supported_tasks

    async def get_parallel_config(self) -> ParallelConfig:
        return self.config.parallel_config

    async def get_scheduler_config(self) -> SchedulerConfig:
        return self.config.scheduler_config

    async def get_decoding_config(self) -> DecodingConfig:
        return self.config.decoding_config

    async def get_lora_config(self) -> LoRAConfig | None:
        return self.config.lora_config

    async def get_input_preprocessor(self) -> Processor:
        return self._front_end.processor

    async def is_tracing_enabled(self) -> bool:
        return self._front_end.traces

    async def do_log_stats(self, scheduler_outputs: None = None, model_output: None = None) -> None:
        """Make the stat loggers log now instead of at the next interval; only None is allowed for the parameters."""
        refuse(scheduler_outputs=scheduler_outputs, model_output=model_output)
        self._front_end.loggers.log()

    def add_logger(self, logger_name: str, logger: StatLoggerBase) -> None:
        """Add a stat logger. Raises KeyError if the name is taken."""
        self._front_end.loggers.add(logger_name, logger)

    def remove_logger(self, logger_name: str) -> None:
        """Remove a stat logger; the default ones are "prometheus" and "logging". Raises KeyError."""
        self._front_end.loggers.remove(logger_name)

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the core, by force after `timeout` seconds. Streams of requests in flight raise EngineDeadError."""
        self._loop.stop()
        self._loop.end(EngineShutDownError("the engine was shut down"))
        if self._finalizer.detach():
            self._core.shutdown(timeout)

    async def _call(self, method: str, *args: Any) -> Any:
        self._require_loop()
        return await self._operations.call(method, *args)

    def _require_loop(self) -> None:
        if self._loop.dead_error is not None:
            raise self._loop.dead_error
        if not self.is_running:
            if not self._start_engine_loop:
                raise RuntimeError("the engine's loop isn't running; call start_background_loop() first")
            self.start_background_loop()


AsyncLLMEngine = AsyncLLM
