"""Operations on a whole engine: pause, sleep, the prefix cache, profiles."""

from typing import Any, Literal

from engine_server.engine.loop.core_process import CoreProcess
from engine_server.engine.loop.request_streams import RequestStreams

PauseMode = Literal["abort", "wait", "keep"]


class Operations:
    """Operations of the core, called by name. Another task must be handling the core's messages.

    Raises RuntimeError if the core refuses or fails, EngineDeadError if it ends.
    """

    def __init__(self, core: CoreProcess, requests: RequestStreams) -> None:
        self._core = core
        self._requests = requests
        self.paused = False

    async def call(self, method: str, *args: Any) -> Any:
        return await self._core.call(method, *args)

    async def pause(self, mode: PauseMode, clear_cache: bool) -> None:
        """Stop all steps until `resume`.

        mode: abort the requests in flight, wait for their end, or keep them unchanged. New requests are held back
        while the pause waits; if it is cancelled, or `resume` is called, they run as if there were no pause.
        """
        match mode:
            case "abort":
                self._requests.abort_all()
                await self._pause_core()
            case "keep":
                await self._pause_core()
            case "wait":
                with self._requests.queue.closed() as barrier:
                    await self._requests.wait_for_sent()
                    if barrier.lifted:
                        return
                    await self._pause_core()
            case _:
                raise ValueError(f"mode is {mode!r}; it takes abort, wait or keep")
        if clear_cache and mode != "keep":
            await self.call("reset_prefix_cache")

    async def resume(self) -> None:
        """Run steps again, and end every pause that is still waiting."""
        self.paused = False
        self._requests.queue.open()
        await self.call("resume")

    async def _pause_core(self) -> None:
        self.paused = True
        await self.call("pause")
