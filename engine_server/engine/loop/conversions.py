"""Conversion of long prompts' log-probabilities in a thread, so that the event loop isn't blocked."""

import asyncio
import logging
from collections.abc import Callable

from engine_server.requests.messages import RequestStep

logger = logging.getLogger(__name__)

# Maximum number of log-probabilities that are converted on the event loop, in about 5 ms.
MAX_INLINE = 4096


class Conversions:
    """Conversions in progress, each of which holds its request's later steps back."""

    def __init__(
        self, convert: Callable[[RequestStep], None], process: Callable[[list[RequestStep]], None]
    ) -> None:
        """convert: runs in a thread. process: called with a request's steps once they can be processed."""
        self._convert = convert
        self._process = process
        # By the core's id: the steps that follow the one being converted, in order.
        self._held: dict[str, list[RequestStep]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def divert(self, steps: list[RequestStep]) -> list[RequestStep]:
        """Return the steps that can be processed now; start a conversion where one is needed."""
        ready = []
        for step in steps:
            if step.request_id in self._held:
                self._held[step.request_id].append(step)
            elif step.prompt_logprobs and num_logprobs(step) > MAX_INLINE:
                self._held[step.request_id] = [step]
                task = asyncio.create_task(self._run(step))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                ready.append(step)
        return ready

    async def _run(self, step: RequestStep) -> None:
        try:
            await asyncio.to_thread(self._convert, step)
        except Exception:  # processing the step raises it again and ends the request
            logger.warning("prompt logprobs of request %s were not converted", step.request_id)
        finally:
            held = self._held.pop(step.request_id)
        self._process(held)


def num_logprobs(step: RequestStep) -> int:
    """Return how many log-probabilities the prompt has; each of its tokens has the same number."""
    return len(step.prompt_logprobs) * len(step.prompt_logprobs[0].token_ids) if step.prompt_logprobs else 0
