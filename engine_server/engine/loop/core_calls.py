"""Operations that an engine's front end asks its core for."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from engine_server.requests.errors import EngineDeadError
from engine_server.requests.messages import Call, CallResult


class CoreCalls:
    """The operations in flight. The results are those among the core's messages, which another task receives."""

    def __init__(self, send: Callable[[Call], None]) -> None:
        self._send = send
        self._results: dict[int, asyncio.Future[CallResult]] = {}
        self._ids = itertools.count()

    def __len__(self) -> int:
        return len(self._results)

    async def make(self, method: str, *args: Any) -> Any:
        """Run an operation; return its result. Raises RuntimeError if the operation fails."""
        call = Call(next(self._ids), method, list(args))
        result = self._results[call.call_id] = asyncio.get_running_loop().create_future()
        self._send(call)
        try:
            return (await result).result()
        finally:
            del self._results[call.call_id]

    def finish(self, message: CallResult) -> None:
        """Return a result to the caller, who may have been cancelled."""
        result = self._results.get(message.call_id)
        if result is not None and not result.done():
            result.set_result(message)

    def fail(self, error: EngineDeadError) -> None:
        """Raise `error` in every operation in flight."""
        for result in self._results.values():
            if not result.done():
                result.set_exception(error)
