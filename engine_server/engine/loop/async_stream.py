"""The stream of one request's outputs to the caller."""

import asyncio
from typing import Any

from engine_server.engine.output.request_state import RequestState, TokenSink
from engine_server.requests.outputs import Output, RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind


class Signal:
    """A flag that one task waits for. asyncio.Event, for any number of tasks, takes twice the time for each token."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the flag is set, and reset it."""
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_set = False


class AsyncStream:
    """A stream that holds one output at most: a slow caller's deltas are merged, so that memory is bounded."""

    def __init__(self, kind: RequestOutputKind, state: RequestState | None = None) -> None:
        """state: the engine's of the request; None for outputs that are not made of an engine's steps."""
        self._merges = kind == RequestOutputKind.DELTA
        self._state = state
        self._pending: Output | None = None
        self._error: BaseException | None = None
        # Set with each output and the error. A caller of several streams may give them one signal.
        self.changed = Signal()
        # Set with the last output, or the error.
        self.ended = asyncio.Event()

    def put(self, output: Output) -> None:
        if self._merges and isinstance(self._pending, RequestOutput) and isinstance(output, RequestOutput):
            output = merge(self._pending, output)
        self._pending = output
        self.changed.set()
        if output.finished:
            self.ended.set()

    def divert(self, sink: TokenSink) -> None:
        """Let `sink` take the next tokens, in place of outputs, until it refuses some or the request ends.

        Nothing changes while there is an output to take, or if outputs say more than tokens and text.
        """
        if self._state is not None and self._pending is None and self._error is None:
            self._state.divert(sink)

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the caller once it has taken the previous output."""
        self._error = error
        self.changed.set()
        self.ended.set()

    def take(self) -> Output | None:
        """Return the next output; None if there is none yet. Raises the error after the last output."""
        output, self._pending = self._pending, None
        if self._error is not None:
            if output is None:
                raise self._error
            self.changed.set()  # for who waits before the next call
        return output

    async def get(self) -> Output:
        """Wait for the next output and return it."""
        while (output := self.take()) is None:
            await self.changed.wait()
        return output


def merge(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Return two deltas as one; either may lack completions that the other has."""
    outputs = {output.index: output for output in earlier.outputs}
    for after in later.outputs:
        if before := outputs.get(after.index):
            after.text = before.text + after.text
            after.token_ids = before.token_ids + after.token_ids
            after.resumed_text = before.resumed_text + after.resumed_text
            if before.logprobs and after.logprobs is not None:
                joined: Any = before.logprobs
                after.logprobs = joined + after.logprobs
        outputs[after.index] = after
    later.outputs = [outputs[index] for index in sorted(outputs)]
    later.prompt_logprobs = earlier.prompt_logprobs or later.prompt_logprobs
    return later
