"""The engine behind the server: loaded in a thread while the port already answers, then monitored."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from engine_server.requests.errors import EngineDeadError
from engine_server.server.engine_load import EngineLoad
from engine_server.server.loaded_model import LoadedModel, TemplateReader, loaded_model
from engine_server.server.wanted_adapters import read_adapters_file

if TYPE_CHECKING:
    from engine_server.engine.engine_args import AsyncEngineArgs
    from engine_server.engine.loop.core_process import CoreProcess
    from engine_server.server.settings import ApiSettings

logger = logging.getLogger(__name__)

# The phase that follows the end of another.
NEXT_PHASE = {"import": "load", "load": "warm up"}
POLL_SECONDS = 0.2
STARTUP = Gauge(
    "fairlead:startup_seconds", "Duration of each phase of the start; ready: of the whole start.", ("phase",)
)
STALLED = Gauge(
    "fairlead:core_stalled_seconds",
    "Time in which the engine core has made no progress; unhealthy above --hang-timeout.",
)


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
        self._loaded: asyncio.Future[LoadedModel]
        self._model: LoadedModel | None = None
        self.phase: str | None = "import"
        # The durations of the phases that have ended.
        self.phase_seconds: dict[str, float] = {}
        # The share of the weights that are loaded, 0 to 1.
        self.loaded = 0.0
        self.engine_load = EngineLoad()

    @property
    def model(self) -> LoadedModel:
        assert self._model is not None, "requests are admitted once the model is loaded"
        return self._model

    @property
    def loading(self) -> bool:
        return self.phase is not None

    @property
    def death(self) -> BaseException | None:
        """The error that ended the engine; None while it lives."""
        if self._model is None or not self._model.engine.errored:
            return None
        return self._model.engine.dead_error

    async def failure(self) -> str | None:
        """Return why the engine can't serve, dead or hung; None if it can."""
        try:
            if self._model is not None:
                await self._model.engine.check_health()
        except EngineDeadError as error:
            return error.cause
        return None

    @property
    def thread_runs(self) -> bool:
        return self._thread.is_alive()

    async def run(self) -> BaseException:
        """Load the engine, wait until it dies, and return the cause. Raises the errors of the start."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._thread.start()
        model = self._model = await self._loaded
        engine = model.engine
        STALLED.set_function(lambda: engine.core_stalled)
        if not engine.is_running:
            engine.start_background_loop()  # detects the core's death before the first request
        logger.info("sampling defaults: %s", model.sampling_defaults or "none")
        for name, uri in self.settings.adapters().items():
            await model.adapters.load(name, uri)
        if self.settings.adapters_file is not None:
            await model.adapter_set.want(read_adapters_file(self.settings.adapters_file))
        self.phase = None
        report_phase("ready", time.monotonic() - self._started)
        while self.death is None:  # noqa: ASYNC110  (the engine has no event for it)
            await asyncio.sleep(POLL_SECONDS)
        return self.death

    def shut_down(self) -> None:
        if self._model is not None:
            self._model.engine.shutdown()

    def _load(self) -> None:
        loop = self._loaded.get_loop()
        try:
            template = self.settings.read_chat_template()
            model = self._load_model(template)
        except BaseException as error:
            loop.call_soon_threadsafe(self._settle, None, error)
        else:
            loop.call_soon_threadsafe(self._settle, model, None)

    def _load_model(self, template: str | None) -> LoadedModel:
        from engine_server.server.conversation.derivation.process import TemplateProcess

        # Its imports take a second, in which the engine has started its own.
        with TemplateProcess() as templates:
            from engine_server.config import UsageContext
            from engine_server.engine.async_llm import AsyncLLMEngine

            reader = TemplateReader(self.settings, template, templates.facts)
            engine = AsyncLLMEngine.from_engine_args(
                self._args,
                usage_context=UsageContext.OPENAI_API_SERVER,
                on_phase=self._on_phase,
                on_load=self._on_load,
                core=self._core,
                template_end=reader.end,
            )
            self.engine_load.max_num_seqs = engine.config.most_running
            self.engine_load.max_model_len = engine.model_config.max_model_len
            engine.add_logger("load", self.engine_load)
            return loaded_model(engine, self.settings, template, reader.facts)

    def _settle(self, model: LoadedModel | None, error: BaseException | None) -> None:
        if self._loaded.done():  # the server was stopped during the start
            return
        if model is not None:
            self._loaded.set_result(model)
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
    # One write: print makes two where Python doesn't buffer, and the core's log line may come between them.
    sys.stderr.write(f"phase {phase} {seconds:.1f} s\n")
    sys.stderr.flush()
