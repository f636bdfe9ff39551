"""All sides at once, in front of the mock engines."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.router.load import PATH, body
from benchmarks.router.processes import await_answer, free_port
from benchmarks.router.sides import Side, Starter

ENGINES = 2


@contextmanager
def running(
    engines: Callable[[list[int], Path], AbstractContextManager[None]], begin: Sequence[Starter], folder: Path
) -> Iterator[list[Side]]:
    """Run all sides in front of the engines; each of them answers."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(ENGINES)]
        stack.enter_context(engines(ports, folder))
        sides = [stack.enter_context(start(ports, folder)) for start in begin]
        for side in sides:
            await_answer(side.url + PATH, body(streamed=False, prompt="first"), side.headers)
        yield sides
