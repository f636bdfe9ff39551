"""Parts of steps as programs: a CPU runs one list of native operations instead of the model's Python code.

They are recorded from decodes. Only the list of sequences makes a step with prompts another one, and that is an input.
"""

import logging
import time
from collections import Counter
from functools import partial

import torch

from engine_server.modeling.graphs.captured_step import StepPart
from engine_server.modeling.graphs.merging import merge_recordings
from engine_server.modeling.graphs.program import Program
from engine_server.modeling.graphs.recording import UnrecordableError, record
from engine_server.modeling.graphs.unused import without_unused

# Numbers of rows: integers are inferred from two recordings, and compared with a third.
EXAMPLES = (3, 5, 4)
# Numbers of rows for which a program is compared with the eager step: few and small, since the engine waits for it.
COMPARED = {1, 2, 16}
MOST_COMPARED = max(COMPARED)
logger = logging.getLogger(__name__)


class StepPrograms:
    """One part of a step as a program for every number of tokens."""

    def __init__(self, part: StepPart) -> None:
        """Record the part, and compare the program with it. Raises UnrecordableError if they differ."""
        started = time.monotonic()
        part.prepare(part.most_decodes)
        # Torch may choose other operations, or another order of a sum, for a single row.
        together = part.most_decodes >= max(EXAMPLES)
        alone = range(1, 2 if together else part.most_decodes + 1)
        self._programs = {size: _record(part, (size,), size) for size in alone}
        if together:
            self._programs |= dict.fromkeys(range(2, part.most + 1), _record(part, EXAMPLES, part.most))
        for size in sorted(COMPARED & self._programs.keys()):
            if size <= part.most_decodes:
                self._compare(part, size)
        last, seconds = self._programs[max(self._programs)], time.monotonic() - started
        logger.info(
            "recorded the %s of steps as a program of %d native operations and %d of torch in %.1f s%s",
            part.name, last.num_native, last.torch_names.total(), seconds, named(last.torch_names),
        )  # fmt: skip

    @property
    def bytes(self) -> int:
        """The programs' buffers, of which only what steps have used takes memory."""
        return sum(program.bytes for program in {id(one): one for one in self._programs.values()}.values())

    def size_for(self, count: int) -> int | None:
        """Return `count` if a program computes that number of tokens, or None."""
        return count if count in self._programs else None

    def replay(self, size: int) -> None:
        """Compute what `run(size)` computes."""
        self._programs[size].run(size)

    def _compare(self, part: StepPart, size: int) -> None:
        part.erase()
        part.run(size)
        expected = part.output[:size].clone()
        part.erase()
        part.output[:size] = 0
        with part.context(size):
            self.replay(size)
        if not torch.equal(part.output[:size], expected):
            raise UnrecordableError(f"the program's results for {size} sequences differ from the model's")


def named(operations: Counter[str]) -> str:
    """Return names of operations with the number of each, for the end of a line."""
    return "".join(f"; {count} {name}" for name, count in sorted(operations.items()))


def _record(part: StepPart, sizes: tuple[int, ...], most: int) -> Program:
    """Return a program of steps of up to `most` tokens, recorded with each of `sizes`."""
    part.run(sizes[0])  # what is made at the first call isn't part of a step
    recordings = [record(partial(part.run, size), part.step_tensors) for size in sizes]
    return Program(without_unused(merge_recordings(recordings, sizes)), most, part.step_tensors)
