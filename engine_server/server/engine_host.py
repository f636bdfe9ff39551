"""The engine behind the server: loaded in a thread while the port already answers, then monitored."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge

from engine_server.requests.errors import EngineDeadError
from engine_server.server.adapters import ServedAdapters
from engine_server.server.engine_load import EngineLoad
from engine_server.server.wanted_adapters import AdapterSet, read_adapters_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.engine_args import AsyncEngineArgs
    from engine_server.engine.loop.core_process import CoreProcess
    from engine_server.server.settings import ApiSettings

logger = logging.getLogger(__name__)

# The phase that follows the end of another.
NEXT_PHASE = {"import": "load", "load": "warm up"}
POLL_SECONDS = 0.2
# W3C Trace Context.
TRACE_HEADERS = ("traceparent", "tracestate")
STARTUP = Gauge(
    "fairlead:startup_seconds", "Duration of each phase of the start; ready: of the whole start.", ("phase",)
)
STALLED = Gauge(
    "fairlead:core_stalled_seconds",
    "Time in which the engine core has made no progress; unhealthy above --hang-timeout.",
)
TraceHeaders = Mapping[str, str] | None


class EngineHost:
    """Owns the engine. `phase` is the current phase of the start, None once the engine serves.

    core: one that was started earlier.
    """

    def __init__(
        self, args: AsyncEngineArgs, settings: ApiSettings, started: float, core: CoreProcess | None = None
    ) -> None:
        self._args = args
        self._core = core
        self.settings = settings
        self._started = started
        self._thread = threading.Thread(target=self._load, name="engine start", daemon=True)
        self._loaded: asyncio.Future[AsyncLLMEngine]
        self._engine: AsyncLLMEngine | None = None
        self.phase: str | None = "import"
        # The durations of the phases that have ended.
        self.phase_seconds: dict[str, float] = {}
        # The share of the weights that are loaded, 0 to 1.
        self.loaded = 0.0
        self.served_names: list[str] = []
        self.max_model_len = 0
        # "generate", or those of a pooling model.
        self.tasks: tuple[str, ...] = ()
        # Sampling parameters by name, for fields that a request leaves out.
        self.sampling_defaults: dict[str, Any] = {}
        # Identifies all that an answer depends on besides its request.
        self.fingerprint = ""
        self.engine_load = EngineLoad()
        self.adapters = ServedAdapters()
        self.adapter_set = AdapterSet(
            self.adapters, partial(self.load_adapter, replace=True), self.unload_adapter
        )
        # None for an engine that takes and returns token ids only.
        self.tokenizer: PreTrainedTokenizerBase | None = None
        # The format of the model's reasoning and tool calls: parsers' ModelFormat, which is above this module.
        self.answer_format: Any = None
        # Called in the thread of the start once the tokenizer is loaded; an error ends the start.
        self.on_loaded: list[Callable[[EngineHost], None]] = []
        self._traces = False

    @property
    def engine(self) -> AsyncLLMEngine:
        assert self._engine is not None, "requests are admitted once the engine is loaded"
        return self._engine

    @property
    def loading(self) -> bool:
        return self.phase is not None

    @property
    def death(self) -> BaseException | None:
        """The error that ended the engine; None while it lives."""
        if self._engine is None or not self._engine.errored:
            return None
        return self._engine.dead_error

    async def failure(self) -> str | None:
        """Return why the engine can't serve, dead or hung; None if it can."""
        try:
            if self._engine is not None:
                await self._engine.check_health()
        except EngineDeadError as error:
            return error.cause
        return None

    def trace_headers(self, headers: Mapping[str, str]) -> TraceHeaders:
        """Return the headers that continue the client's trace; None without any, or if the engine exports no spans."""
        found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        return found if found and self._traces else None

    @property
    def thread_runs(self) -> bool:
        return self._thread.is_alive()

    async def run(self) -> BaseException:
        """Load the engine, wait until it dies, and return the cause. Raises the errors of the start."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._thread.start()
        engine = self._engine = await self._loaded
        STALLED.set_function(lambda: engine.core_stalled)
        model = await engine.get_model_config()
        if not engine.is_running:
            engine.start_background_loop()  # detects the core's death before the first request
        self.served_names = model.served_model_name
        self.max_model_len = model.max_model_len
        self.tasks = await engine.get_supported_tasks()
        self.sampling_defaults = model.get_diff_sampling_param()
        logger.info("sampling defaults: %s", self.sampling_defaults or "none")
        self._traces = await engine.is_tracing_enabled()
        for name, uri in self.settings.adapters().items():
            await self.load_adapter(name, uri)
        if self.settings.adapters_file is not None:
            await self.adapter_set.want(read_adapters_file(self.settings.adapters_file))
        self.phase = None
        report_phase("ready", time.monotonic() - self._started)
        while self.death is None:  # noqa: ASYNC110  (the engine has no event for it)
            await asyncio.sleep(POLL_SECONDS)
        return self.death

    async def load_adapter(self, name: str, uri: str, replace: bool = False) -> None:
        """Serve an adapter by a name. Raises InvalidRequestError, a ValueError, for one that can't be served."""
        await self.adapters.load(self.engine, self.served_names, name, uri, replace)

    async def unload_adapter(self, name: str) -> bool:
        """Serve an adapter no longer, and return False if there is none of this name. Requests in flight go on."""
        return await self.adapters.unload(self.engine, name)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token; "" for a part of a character, and without a tokenizer."""
        text = "" if self.tokenizer is None else str(self.tokenizer.decode([token_id]))
        return "" if "\ufffd" in text else text

    def shut_down(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()

    def _load(self) -> None:
        loop = self._loaded.get_loop()
        try:
            from engine_server.config import UsageContext
            from engine_server.engine.async_llm import AsyncLLMEngine

            template = self.settings.read_chat_template()
            engine = AsyncLLMEngine.from_engine_args(
                self._args,
                usage_context=UsageContext.OPENAI_API_SERVER,
                on_phase=self._on_phase,
                on_load=self._on_load,
                core=self._core,
            )
            self._prepare(engine, template)
        except BaseException as error:
            loop.call_soon_threadsafe(self._settle, None, error)
        else:
            loop.call_soon_threadsafe(self._settle, engine, None)

    def _prepare(self, engine: AsyncLLMEngine, template: str | None) -> None:
        """Derive what the APIs need of the engine and its model."""
        from engine_server.server.fingerprint import fingerprint

        self.engine_load.max_num_seqs = engine.config.scheduler_config.max_num_seqs
        engine.add_logger("load", self.engine_load)
        self.tokenizer = engine.tokenizer
        if template is not None and self.tokenizer is not None:
            self.tokenizer.chat_template = template
        self.fingerprint = fingerprint(engine.config, getattr(self.tokenizer, "chat_template", None))
        for callback in self.on_loaded:
            callback(self)

    def _settle(self, engine: AsyncLLMEngine | None, error: BaseException | None) -> None:
        if self._loaded.done():  # the server was stopped during the start
            return
        if engine is not None:
            self._loaded.set_result(engine)
        else:
            assert error is not None
            self._loaded.set_exception(error)

    def _on_phase(self, name: str, seconds: float) -> None:
        report_phase(name, seconds)
        self.phase_seconds[name] = round(seconds, 2)
        self.phase = NEXT_PHASE.get(name, self.phase)

    def _on_load(self, share: float) -> None:
        self.loaded = share


def report_phase(phase: str, seconds: float) -> None:
    """Print the duration of a phase of the start to stderr, and set its metric."""
    STARTUP.labels(phase).set(seconds)
    print(f"phase {phase} {seconds:.1f} s", file=sys.stderr, flush=True)
