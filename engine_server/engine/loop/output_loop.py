"""Handling of the core's messages, by a background task or one by one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from engine_server.engine.loop.core_process import CoreProcess
from engine_server.engine.loop.request_streams import RequestStreams
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import PictureWanted, PromptLogprobsPart, StepOutputs


class OutputLoop:
    """The loop that passes the core's messages to the requests. `dead_error` is set once the engine has ended."""

    def __init__(self, core: CoreProcess, requests: RequestStreams) -> None:
        self.dead_error: EngineDeadError | None = None
        self._core = core
        self._requests = requests
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def stopped(self) -> bool:
        return self.dead_error is not None or (self._task is not None and self._task.done())

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run `steps`, which call `step` until the engine ends, in a task."""
        self._task = asyncio.create_task(steps)

    def stop(self) -> None:
        """Cancel the task. No message is lost."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def arrive(self) -> None:
        """Wait until there is a message, or the core has ended."""
        await self._core.arrive()

    async def step(self) -> None:
        """Handle one message. Raises EngineDeadError when the core has ended."""
        if self.running and asyncio.current_task() is not self._task:
            raise RuntimeError("the background loop handles the core's messages; shut it down first")
        try:
            message = await self._core.receive()
            if isinstance(message, StepOutputs):
                self._requests.process(message)
            elif isinstance(message, PromptLogprobsPart):
                self._requests.add_prompt_logprobs(message)
                await asyncio.sleep(0)  # many follow each other
            elif isinstance(message, PictureWanted):
                self._requests.send_inputs(message)
        except EngineDeadError as error:
            self.end(error)
            raise
        except Exception as error:
            dead = EngineDeadError(f"the engine's loop failed: {type(error).__name__}: {error}")
            self.end(dead)
            raise dead from error

    def end(self, error: EngineDeadError) -> None:
        """Raise `error` in every stream and operation, present or future. Later errors are ignored."""
        if self.dead_error is None:
            self.dead_error = error
            self._requests.fail(error)
            self._core.fail_calls(error)
