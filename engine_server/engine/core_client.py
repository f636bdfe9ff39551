"""The way to an engine core in a process of its own: ZMQ for messages, a lifeline to notice an end."""

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine_server.config import EngineConfig
from engine_server.core.distributed.child_process import Child
from engine_server.modeling.progress import FILE, ProgressClock
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import Call, CoreMessage, FrontEndMessage, Phase, Ready, Returned

OnPhase = Callable[[str, float], None]

LAST_WORDS_MS = 200  # how long what the core sent just before its end may take to arrive
POLL_MS = 100


class CoreProcess:
    """A child that runs the core. Made in any thread; used from one event loop, found at the first `receive`.

    The child begins to import as soon as it is made, and to load once `configure` has told it what.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="fairlead-")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._input = context.socket(zmq.PUSH)
        self._output = context.socket(zmq.PULL)
        for endpoint in (self._input, self._output):
            endpoint.set_hwm(0)
            endpoint.linger = 0
        self._input.bind(f"ipc://{self._folder}/input")
        self._output.bind(f"ipc://{self._folder}/output")
        self._progress = ProgressClock.create(Path(self._folder, FILE))
        self._child = Child("the engine core", "engine_server.core", self._folder)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(CoreMessage)
        self._async_output: zmq.asyncio.Socket | None = None
        self._receiving: asyncio.Future[bytes] | None = None
        self._arrived: bytes | None = None
        self._calls: dict[int, asyncio.Future[Returned]] = {}
        self._call_ids = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def configure(self, config: EngineConfig) -> None:
        self._input.send(self._encoder.encode(config))

    def wait_until_ready(self, on_phase: OnPhase | None) -> Ready:
        """Block until the core takes requests. Raises EngineDeadError with its reason."""
        while True:
            if not self._output.poll(POLL_MS):
                if self._child.process.poll() is not None and not self._output.poll(LAST_WORDS_MS):
                    raise EngineDeadError(self._child.death())
                continue
            match self._decoder.decode(self._output.recv()):
                case Phase(name, seconds):
                    if on_phase is not None:
                        on_phase(name, seconds)
                case Ready() as ready:
                    return ready

    def send(self, message: FrontEndMessage) -> None:
        """Never waits; what is sent to a core that has ended is lost, as `receive` tells."""
        if not self._input.closed:
            self._input.send(self._encoder.encode(message), zmq.NOBLOCK)

    def check(self, hang_timeout: float) -> None:
        """Raises EngineDeadError where the core has ended, or made no progress for `hang_timeout` seconds."""
        if self._child.process.poll() is not None:
            raise EngineDeadError(self._child.death())
        if self._calls:  # which may take as long as they take
            return
        stuck = time.monotonic() - self._progress.latest
        if stuck > hang_timeout:
            raise EngineDeadError(f"the engine core (process {self.pid}) made no progress for {stuck:.0f} s")

    async def call(self, method: str, *args: Any) -> Any:
        """What an operation of the core gives, while others `receive`. Raises RuntimeError where it fails."""
        call = Call(next(self._call_ids), method, list(args))
        answer = self._calls[call.call_id] = asyncio.get_running_loop().create_future()
        self.send(call)
        try:
            return (await answer).result()
        finally:
            del self._calls[call.call_id]

    def fail_calls(self, error: EngineDeadError) -> None:
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error)

    async def arrive(self) -> None:
        """Wait until there is something to `receive`, be it the core's end."""
        if self._async_output is None:
            self._async_output = zmq.asyncio.Socket.from_socket(self._output)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._child.lifeline, self._notice_end)
        if self._arrived is None and not self._ended:
            self._receiving = asyncio.ensure_future(self._async_output.recv())
            try:
                self._arrived = await self._receiving
            except asyncio.CancelledError:
                if not self._ended:
                    raise

    async def receive(self) -> CoreMessage:
        """The next message. Raises EngineDeadError once the core has ended and nothing is left to read."""
        await self.arrive()
        data, self._arrived = self._arrived, None
        if data is None and not self._output.closed and self._output.poll(LAST_WORDS_MS):
            data = self._output.recv()
        if data is None:
            raise EngineDeadError(self._child.death())
        message: CoreMessage = self._decoder.decode(data)
        if isinstance(message, Returned):
            answer = self._calls.get(message.call_id)
            if answer is not None and not answer.done():  # else its caller has left
                answer.set_result(message)
        return message

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the core, and wait for its end; after `timeout` seconds it is killed."""
        if self._loop is not None and not self._loop.is_closed():
            self._notice_end()
        if self._async_output is not None:
            self._async_output.close()
        self._child.let_go()
        self._child.wait(timeout)
        self._input.close()
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _notice_end(self) -> None:
        assert self._loop is not None
        self._ended = True
        self._loop.remove_reader(self._child.lifeline)
        if self._receiving is not None:
            self._receiving.cancel()
