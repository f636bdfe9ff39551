"""The engine behind the server: loaded in a thread while the port already answers, then watched."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine_server.requests.errors import EngineDeadError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.engine_args import AsyncEngineArgs

NEXT_PHASE = {"import": "load", "load": "warm up"}
WATCH_SECONDS = 0.2
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context
Trace = Mapping[str, str] | None


class EngineHost:
    """Owns the engine. `phase` is what the start is at, None once the engine serves."""

    def __init__(self, args: AsyncEngineArgs, started: float) -> None:
        self._args = args
        self._started = started
        self._thread = threading.Thread(target=self._load, name="engine start", daemon=True)
        self._loaded: asyncio.Future[AsyncLLMEngine]
        self._engine: AsyncLLMEngine | None = None
        self.phase: str | None = "import"
        self.served_names: list[str] = []
        self.max_model_len = 0
        self._traces = False

    @property
    def engine(self) -> AsyncLLMEngine:
        assert self._engine is not None, "requests are admitted only once the engine is there"
        return self._engine

    @property
    def loading(self) -> bool:
        return self.phase is not None

    @property
    def dead(self) -> BaseException | None:
        """Why the engine is dead, or None."""
        if self._engine is None or not self._engine.errored:
            return None
        return self._engine.dead_error

    async def trouble(self) -> str | None:
        """Why the engine can't serve now, be it dead or hung."""
        try:
            if self._engine is not None:
                await self._engine.check_health()
        except EngineDeadError as error:
            return str(error)
        return None

    def trace_headers(self, headers: Mapping[str, str]) -> Trace:
        """What tells the engine of the client's trace, where spans are posted at all."""
        found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        return found if found and self._traces else None

    @property
    def thread_runs(self) -> bool:
        return self._thread.is_alive()

    async def run(self) -> BaseException:
        """Load the engine, serve until it dies, and return why. Raises what the start raises."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._thread.start()
        engine = self._engine = await self._loaded
        model = await engine.get_model_config()
        if model.pooling is not None:
            raise ValueError(
                f"{model.model} pools, it doesn't generate: use it from Python (LLM, AsyncLLM.encode)"
            )
        if not engine.is_running:
            engine.start_background_loop()  # so that the core's death is noticed before the first request too
        self.served_names = model.served_model_name
        self.max_model_len = model.max_model_len
        self._traces = await engine.is_tracing_enabled()
        self.phase = None
        _say("ready", time.monotonic() - self._started)
        while self.dead is None:  # noqa: ASYNC110  (the engine tells of its death by this alone)
            await asyncio.sleep(WATCH_SECONDS)
        return self.dead

    def shut_down(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()

    def _load(self) -> None:
        loop = self._loaded.get_loop()
        try:
            from engine_server.config import UsageContext
            from engine_server.engine.async_llm import AsyncLLMEngine

            engine = AsyncLLMEngine.from_engine_args(
                self._args, usage_context=UsageContext.OPENAI_API_SERVER, on_phase=self._on_phase
            )
        except BaseException as error:
            loop.call_soon_threadsafe(self._settle, None, error)
        else:
            loop.call_soon_threadsafe(self._settle, engine, None)

    def _settle(self, engine: AsyncLLMEngine | None, error: BaseException | None) -> None:
        if self._loaded.done():  # the server was stopped meanwhile
            return
        if engine is not None:
            self._loaded.set_result(engine)
        else:
            assert error is not None
            self._loaded.set_exception(error)

    def _on_phase(self, name: str, seconds: float) -> None:
        _say(name, seconds)
        self.phase = NEXT_PHASE.get(name, self.phase)


def _say(phase: str, seconds: float) -> None:
    print(f"phase {phase} {seconds:.1f} s", file=sys.stderr, flush=True)
