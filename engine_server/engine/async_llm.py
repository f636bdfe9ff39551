"""The asynchronous engine: many callers, one core in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from engine_server.config import (
    DecodingConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    UsageContext,
)
from engine_server.engine.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence
from engine_server.engine.compat import one_prompt, refuse, request_key, request_keys, rpc_arguments
from engine_server.engine.core_client import CoreProcess, OnPhase
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.engine.front_end import FrontEnd, StatLoggers
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import load_tokenizer
from engine_server.engine.output.async_stream import AsyncStream
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import AbortRequests, AddRequest, CoreMessage, StepOutputs
from engine_server.requests.outputs import CompletionOutput, Output, PoolingRequestOutput, RequestOutput
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.prompts import INPUT_REGISTRY, InputRegistry, PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.telemetry.loggers import StatLoggerBase

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.core.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class AsyncLLM:
    """An engine for an event loop. Its way: processor, core, detokenizer, stream.

    The constructor blocks until the core has loaded the model; `on_phase(name, seconds)` hears of each part of
    the start as it ends. It may run in a thread: the engine belongs to the event loop that first uses it.
    An engine that nobody holds is collected, and its core ends with it. `core` may be given by who started one
    before, since its import takes seconds.

    Raises ValueError for a model or setting that can't be used, EngineDeadError where the core can't start.
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
        core: CoreProcess | None = None,
    ) -> None:
        refuse(input_registry=input_registry is not INPUT_REGISTRY, use_cached_outputs=use_cached_outputs)
        config = vllm_config.with_executor(executor_class)
        self.log_requests = log_requests
        self._start_engine_loop = start_engine_loop
        self._streams: dict[str, AsyncStream] = {}
        self._held: list[AddRequest] | None = None  # requests that come while a pause waits for others
        self._paused = False
        self._loop: asyncio.Task[None] | None = None
        self._dead_error: EngineDeadError | None = None
        self._core = core or CoreProcess()
        self._finalizer = weakref.finalize(self, self._core.shutdown)
        try:
            self._core.configure(config)
            tokenizer = load_tokenizer(config.model_config)  # while the core loads
            ready = self._core.wait_until_ready(on_phase)
        except BaseException:
            self.shutdown()
            raise
        self.config = config.with_blocks(ready.num_blocks)
        self._front_end = FrontEnd(self.config, tokenizer, log_stats, stat_loggers)
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
    ) -> Self:
        """Make an engine from its arguments; `engine_config`, where given, stands for what they resolve to."""
        core = CoreProcess()  # imports while we read the model's configuration
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
            core=core,
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
        *,
        inputs: PromptType | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield a request's outputs as they come; the last has `finished`.

        A caller that stops iterating aborts the request. Raises InvalidRequestError before anything is queued,
        and EngineDeadError when the core ends on the way.
        """
        outputs = self._outputs(
            request_id, prompt, inputs, sampling_params or SamplingParams(),
            lora_request, trace_headers, prompt_adapter_request, priority,
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
        *,
        inputs: PromptType | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Yield once what a pooling model makes of the prompt: for the task embed an EmbeddingRequestOutput.

        As `generate` otherwise.
        """
        outputs = self._outputs(
            request_id, prompt, inputs, pooling_params or PoolingParams(),
            lora_request, trace_headers, None, priority,
        )  # fmt: skip
        return cast(AsyncGenerator[PoolingRequestOutput[Any], None], outputs)

    async def _outputs(
        self,
        request_id: str | int,
        prompt: PromptType | None,
        inputs: PromptType | None,
        params: SamplingParams | PoolingParams,
        *options: Any,
    ) -> AsyncGenerator[Output, None]:
        key = request_key(request_id)
        stream = await self.add_request(key, one_prompt(prompt, inputs), params, None, *options)
        try:
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            if self._streams.get(key) is stream:
                self._abort([key])

    async def beam_search(
        self, prompt: PromptType, request_id: str | int, params: BeamSearchParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one output: the beam_width best completions, the best first. See BeamSearchParams."""

        async def last(number: int, beam: BeamSearchSequence) -> CompletionOutput:
            stream = self.generate({"prompt_token_ids": beam.tokens}, search.step_params, f"{key}-{number}")
            return [output async for output in stream][-1].outputs[0]

        key = request_key(request_id)
        search = BeamSearch(prompt, params, self._front_end.processor)
        while search.beams:
            search.advance(await asyncio.gather(*(last(*item) for item in enumerate(search.beams))))
        yield search.output(key)

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
    ) -> AsyncStream:
        """Queue a request; its outputs come from the stream. `arrival_time` is on the monotonic clock."""
        self._require_loop()
        key = request_key(request_id)
        requests = self._front_end.admit(
            key, prompt, params, arrival_time, lora_request, trace_headers, prompt_adapter_request, priority
        )
        stream = self._streams[key] = AsyncStream(params.output_kind)
        for request in requests:
            if self._held is None:
                self._core.send(request)
            else:
                self._held.append(request)
            if self.log_requests:
                logger.info("request %s: %d prompt tokens", request.request_id, len(request.prompt_token_ids))
        if not requests:
            self._abort([key])  # it has its last output already
        return stream

    async def abort(self, request_id: str | int | Iterable[str], internal: bool = False) -> None:
        """End requests at once; their streams get a last output with the reason abort. Unknown ids are no error.

        internal: the engine's own ids are not given to callers, so that only False is taken.
        """
        refuse(internal=internal)
        self._abort(request_keys(request_id))

    def start_background_loop(self) -> None:
        """Start handling the core's messages in the running event loop."""
        if self._dead_error is not None:
            raise self._dead_error
        if self.is_running:
            raise RuntimeError("the engine's loop is running already")
        self._loop = asyncio.create_task(self.run_engine_loop(weakref.ref(self)))

    def shutdown_background_loop(self) -> None:
        """Stop handling the core's messages; streams wait until a loop or `engine_step` goes on with them."""
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None

    @staticmethod
    async def run_engine_loop(engine_ref: weakref.ref[AsyncLLM]) -> None:
        """Handle the core's messages for as long as somebody holds the engine."""
        while (engine := engine_ref()) and not engine.errored:
            core = engine._core
            del engine
            await core.arrive()  # nobody holds the engine here
            if engine := engine_ref():
                with contextlib.suppress(EngineDeadError):  # every stream tells
                    await engine.engine_step()

    async def engine_step(self) -> bool:
        """Handle one message of the core; whether requests remain. The background loop does nothing else.

        Raises EngineDeadError when the core has ended.
        """
        if self.is_running and asyncio.current_task() is not self._loop:
            raise RuntimeError("the background loop handles the core's messages; shut it down first")
        try:
            self._handle(await self._core.receive())
        except Exception as error:
            dead = EngineDeadError(f"the engine's loop failed: {type(error).__name__}: {error}")
            self._die(error if isinstance(error, EngineDeadError) else dead)
            raise self.dead_error from error
        return bool(self._streams)

    @property
    def is_running(self) -> bool:
        return self._loop is not None and not self._loop.done()

    @property
    def is_stopped(self) -> bool:
        return self.errored or (self._loop is not None and self._loop.done())

    @property
    def errored(self) -> bool:
        return self._dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError:
        return self._dead_error or EngineDeadError("the engine is not dead")

    @property
    def core_pid(self) -> int:
        return self._core.pid

    async def check_health(self) -> None:
        """Raises EngineDeadError when the core has ended, or hangs: `hang_timeout` passed without progress."""
        if self._dead_error is not None:
            raise self._dead_error
        self._core.check(self.config.observability_config.hang_timeout)

    async def pause_generation(
        self, *, mode: Literal["abort", "wait", "keep"] = "abort", clear_cache: bool = True
    ) -> None:
        """Run nothing until `resume_generation`; requests that come wait.

        Those under way are aborted, finished first, or kept as they are. The prefix cache is emptied but for keep.
        """
        match mode:
            case "abort":
                self._abort(list(self._streams))
            case "wait":
                before = list(self._streams.values())
                self._held = []
                for stream in before:
                    await stream.ended.wait()
            case "keep":
                pass
            case _:
                raise ValueError(f"mode is {mode!r}; it takes abort, wait or keep")
        self._paused = True
        await self._call("pause")
        self._send_held()
        if clear_cache and mode != "keep":
            await self._call("reset_prefix_cache")

    async def resume_generation(self) -> None:
        self._paused = False
        await self._call("resume")
        self._send_held()

    async def is_paused(self) -> bool:
        return self._paused

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Return once no request is under way. Raises TimeoutError after `drain_timeout` seconds."""
        async with asyncio.timeout(drain_timeout):
            while self._streams:
                await next(iter(self._streams.values())).ended.wait()

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget cached prompts; False, and nothing done, while requests hold blocks.

        reset_running_requests: preempt requests that hold blocks, which are computed again, and forget all.
        reset_connector: there is no connector, so that only False is taken.
        """
        refuse(reset_connector=reset_connector)
        return bool(await self._call("reset_prefix_cache", reset_running_requests))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  (vLLM's name)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the executor on every rank, and return what each one returns.

        timeout: seconds after which TimeoutError is raised, while the call goes on; None: never. Arguments and
        results are plain data, which msgpack encodes. Raises RuntimeError if a call fails.
        """
        async with asyncio.timeout(timeout):
            return list(await self._call("collective_rpc", *rpc_arguments(method, args, kwargs)))

    async def sleep(self, level: int = 1) -> None:
        """Free the KV cache; level 1 moves a GPU's weights to the host, level 2 drops them. Requests wait."""
        await self._call("sleep", level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake "weights", "kv_cache", or both; requests go on once both are awake, as if nothing had been."""
        await self._call("wake_up", tags)

    async def is_sleeping(self) -> bool:
        return bool(await self._call("is_sleeping"))

    async def start_profile(self) -> None:
        """Trace the core with torch.profiler, into the folder `torch_profiler_dir`."""
        await self._call("start_profile")

    async def stop_profile(self) -> None:
        """Write the trace."""
        await self._call("stop_profile")

    def get_num_unfinished_requests(self) -> int:
        return len(self._streams)

    async def get_tokenizer(self, lora_request: LoRARequest | None = None) -> PreTrainedTokenizerBase:
        """Raises ValueError where the engine was made without one."""
        return self._front_end.require_tokenizer(lora_request)

    @property
    def vllm_config(self) -> EngineConfig:
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        return self.config.model_config

    async def get_model_config(self) -> ModelConfig:
        return self.config.model_config

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
        """Let the stat loggers say now what they would say at the next interval; the parameters take None."""
        refuse(scheduler_outputs=scheduler_outputs, model_output=model_output)
        self._front_end.log_stats()

    def add_logger(self, logger_name: str, logger: StatLoggerBase) -> None:
        """Raises KeyError where the name is taken."""
        self._front_end.add_logger(logger_name, logger)

    def remove_logger(self, logger_name: str) -> None:
        """The engine's own are "prometheus" and "logging". Raises KeyError."""
        del self._front_end.loggers[logger_name]

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the core, by force after `timeout` seconds. Streams under way raise EngineDeadError."""
        if self._loop is not None:
            self._loop.cancel()
        if self._dead_error is None:
            self._die(EngineDeadError("the engine was shut down"))
        if self._finalizer.detach():
            self._core.shutdown(timeout)

    def _require_loop(self) -> None:
        if self._dead_error is not None:
            raise self._dead_error
        if not self.is_running:
            if not self._start_engine_loop:
                raise RuntimeError("the engine's loop isn't running; call start_background_loop() first")
            self.start_background_loop()

    async def _call(self, method: str, *args: Any) -> Any:
        self._require_loop()
        return await self._core.call(method, *args)

    def _handle(self, message: CoreMessage) -> None:
        if isinstance(message, StepOutputs):
            outputs, stopped = self._front_end.digest(message)
            for output in outputs:
                self._put(output)
            if stopped:
                self._core.send(AbortRequests(stopped))

    def _put(self, output: Output) -> None:
        stream = self._streams[output.request_id]
        if output.finished:
            del self._streams[output.request_id]
        stream.put(output)

    def _abort(self, request_ids: list[str]) -> None:
        known = [request_id for request_id in request_ids if request_id in self._streams]
        if not known:
            return
        outputs, unfinished = self._front_end.abort(known)
        for output in outputs:
            self._put(output)
        if self._held is not None:
            self._held = [request for request in self._held if request.request_id not in unfinished]
        self._core.send(AbortRequests(unfinished))

    def _send_held(self) -> None:
        held, self._held = self._held or [], None
        for request in held:
            self._core.send(request)

    def _die(self, error: EngineDeadError) -> None:
        self._dead_error = error
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self._core.fail_calls(error)


AsyncLLMEngine = AsyncLLM
