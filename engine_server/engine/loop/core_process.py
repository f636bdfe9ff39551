"""An engine core in a child process: messages over ZMQ, and a lifeline that signals the core's end."""

import asyncio
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine_server.config import EngineConfig
from engine_server.core.distributed.child_process import Child
from engine_server.engine.loop.core_calls import CoreCalls
from engine_server.modeling.device.progress import FILE, ProgressClock
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import CallResult, CoreMessage, FrontEndMessage, Phase, Ready

OnPhase = Callable[[str, float], None]
# Called with the share of the weights that are loaded, 0 to 1.
OnLoad = Callable[[float], None]

# Maximum time for a message that the core sent just before its end to arrive.
LAST_MESSAGES_SECONDS = 0.2
POLL_MS = 100


class CoreProcess:
    """An engine core in a child process. It can be created in any thread, and belongs to the first loop that receives.

    The child starts its imports when this object is created, and loads the model once `configure` has sent the
    configuration.
    """

    # The core's module; benchmarks and tests of the front end replace it.
    module = "engine_server.core"

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
        self._child = Child("the engine core", self.module, self._folder)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(CoreMessage)
        # Messages that were read from the socket but not received yet.
        self._messages: deque[bytes] = deque()
        # Set while there are messages, and once the core has ended.
        self._changed = asyncio.Event()
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = CoreCalls(self.send)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def connected(self) -> bool:
        """True while the core receives messages: from the end of its imports to its own end."""
        return not self._input.closed and bool(self._input.poll(0, zmq.POLLOUT))

    @property
    def stalled(self) -> float:
        """The seconds without progress; 0 during an operation, which may take arbitrarily long."""
        return 0.0 if self._calls else time.monotonic() - self._progress.latest

    def configure(self, config: EngineConfig) -> None:
        """Send the configuration once the core is connected. Raises EngineDeadError if it ends before that."""
        data = self._encoder.encode(config)
        while not self.connected:
            if self._child.process.poll() is not None:
                raise EngineDeadError(self._child.death())
            self._input.poll(POLL_MS, zmq.POLLOUT)
        self._send(data)

    def wait_until_ready(self, on_phase: OnPhase | None, on_load: OnLoad | None = None) -> Ready:
        """Block until the core takes requests. Raises EngineDeadError with the cause if it ends before that."""
        while True:
            if on_load is not None:
                on_load(self._progress.loaded)
            if not self._output.poll(POLL_MS):
                ended = self._child.process.poll() is not None
                if ended and not self._output.poll(int(LAST_MESSAGES_SECONDS * 1000)):
                    raise EngineDeadError(self._child.death())
                continue
            match self._decoder.decode(self._output.recv()):
                case Phase(name, seconds):
                    if on_phase is not None:
                        on_phase(name, seconds)
                case Ready() as ready:
                    return ready

    def send(self, message: FrontEndMessage) -> None:
        """Queue a message for the core without waiting. Drop it if the core has ended; `receive` raises the error."""
        if not self._input.closed:
            encoded, behind = message.detach()
            self._send(self._encoder.encode(encoded), behind)

    def check(self, hang_timeout: float) -> None:
        """Raise EngineDeadError if the core has ended, or made no progress for `hang_timeout` seconds."""
        if self._child.process.poll() is not None:
            raise EngineDeadError(self._child.death())
        if self.stalled > hang_timeout:
            raise EngineDeadError(
                f"the engine core (process {self.pid}) made no progress for {self.stalled:.0f} s"
            )

    async def call(self, method: str, *args: Any) -> Any:
        """Run an operation of the core; return its result. Another task must be receiving.

        Raises RuntimeError if the operation fails.
        """
        return await self._calls.make(method, *args)

    def fail_calls(self, error: EngineDeadError) -> None:
        """Raise `error` in every operation in flight."""
        self._calls.fail(error)

    async def arrive(self) -> None:
        """Wait until there is a message to receive, or the core has ended. Loses nothing when cancelled."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._output.fileno(), self._read_messages)
            self._loop.add_reader(self._child.lifeline, self._notice_end)
            self._read_messages()
        while not (self._messages or self._ended):
            await self._wait()

    async def receive(self) -> CoreMessage:
        """Return the next message. Raises EngineDeadError once the core has ended and everything is read."""
        await self.arrive()
        if not self._messages:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wait(), LAST_MESSAGES_SECONDS)
        if not self._messages:
            raise EngineDeadError(await asyncio.to_thread(self._child.death))
        message: CoreMessage = self._decoder.decode(self._messages.popleft())
        if isinstance(message, CallResult):
            self._calls.finish(message)
        return message

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the core and wait for its end; kill it after `timeout` seconds. Does nothing in a forked process."""
        if not self._child.owned:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._output.fileno())
            self._notice_end()
        self._child.close_lifeline()
        self._child.wait(timeout)
        self._input.close()
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, data: bytes, behind: Sequence[memoryview] = ()) -> None:
        with suppress(zmq.Again):  # the core has ended: the queue has no limit
            if behind:
                self._input.send_multipart([data, *behind], zmq.NOBLOCK, copy=False)
            else:
                self._input.send(data, zmq.NOBLOCK)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _read_messages(self) -> None:
        """Read until the socket is empty, since its descriptor only signals changes after the last read."""
        with suppress(zmq.Again):
            while True:
                self._messages.append(self._output.recv(zmq.NOBLOCK))
        if self._messages:
            self._changed.set()

    def _notice_end(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._child.lifeline)
        self._ended = True
        self._changed.set()
