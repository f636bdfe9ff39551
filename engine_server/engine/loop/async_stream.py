"""The stream of one request's outputs to the caller."""

import asyncio
from typing import Any

from engine_server.requests.outputs import Output, RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind


class AsyncStream:
    """A stream that holds one output at most: a slow caller's deltas are merged, so that memory is bounded."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._merges = kind == RequestOutputKind.DELTA
        self._pending: Output | None = None
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        # Set with the last output, or the error.
        self.ended = asyncio.Event()

    def put(self, output: Output) -> None:
        if self._merges and isinstance(self._pending, RequestOutput) and isinstance(output, RequestOutput):
            output = merge(self._pending, output)
        self._pending = output
        self._changed.set()
        if output.finished:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the caller once it has taken the previous output."""
        self._error = error
        self._changed.set()
        self.ended.set()

    async def get(self) -> Output:
        """Wait for the next output and return it."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        output, self._pending = self._pending, None
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
