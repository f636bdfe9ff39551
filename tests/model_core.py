"""A real engine core in a thread of the test process, which need not import torch once more for each model."""

import asyncio
import os
import queue
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from engine_server.config import EngineConfig
from engine_server.core.__main__ import run
from engine_server.core.engine_core import EngineCore
from engine_server.engine.loop.core_calls import CoreCalls
from engine_server.engine.loop.core_process import OnLoad, OnPhase
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import CallResult, CoreMessage, FrontEndMessage, Ready

END_SECONDS = 60


class EndedError(Exception):
    """The thread of a core ends."""


class ModelCore:
    """An engine core with a model: it has the methods of CoreProcess that the engine calls.

    Messages are encoded and decoded as between two processes.
    """

    stalled = 0.0

    def __init__(self) -> None:
        # Set by the server's start, which nothing here waits for.
        self.may_start = threading.Event()
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ready: Future[Ready] = Future()
        self._thread: threading.Thread | None = None
        # Where messages are received, once one is.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(CoreMessage)
        self._calls = CoreCalls(self.send)

    @property
    def pid(self) -> int:
        return os.getpid()

    def configure(self, config: EngineConfig) -> None:
        self._thread = threading.Thread(target=self._run, args=(config,), name="core", daemon=True)
        self._thread.start()

    def _run(self, config: EngineConfig) -> None:
        try:
            core = EngineCore(config, lambda name, seconds: None)
        except Exception as error:
            self._ready.set_exception(EngineDeadError(str(error)))
            return
        self._ready.set_result(Ready(core.facts))
        decoder, encoder = msgspec.msgpack.Decoder(FrontEndMessage), msgspec.msgpack.Encoder()

        def receive(milliseconds: int) -> FrontEndMessage | None:
            try:
                data = self._inbox.get(block=milliseconds > 0, timeout=milliseconds / 1000)
            except queue.Empty:
                return None
            if data is None:
                raise EndedError
            return decoder.decode(data)

        def send(message: CoreMessage) -> None:
            self._messages.append(encoder.encode(message))
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._changed.set)

        with suppress(EndedError):
            run(core, receive, send)

    def wait_until_ready(self, on_phase: OnPhase | None, on_load: OnLoad | None = None) -> Ready:
        return self._ready.result()

    def send(self, message: FrontEndMessage) -> None:
        self._inbox.put(self._encoder.encode(message))

    async def arrive(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not self._messages:
            self._changed.clear()
            await self._changed.wait()

    async def receive(self) -> CoreMessage:
        await self.arrive()
        message: CoreMessage = self._decoder.decode(self._messages.popleft())
        if isinstance(message, CallResult):
            self._calls.finish(message)
        return message

    async def call(self, method: str, *args: Any) -> Any:
        return await self._calls.make(method, *args)

    def fail_calls(self, error: EngineDeadError) -> None:
        self._calls.fail(error)

    def check(self, hang_timeout: float) -> None: ...

    def shutdown(self, timeout: float = 10.0) -> None:
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(END_SECONDS)
