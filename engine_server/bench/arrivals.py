"""When the conversations of a row begin."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Has the conversation with these texts, to its end.
Converse = Callable[[list[str]], Coroutine[Any, Any, None]]

# Of the requests that a rate's row has by default.
SECONDS = 30


class Arrivals(Protocol):
    """A rule for when conversations begin."""

    @property
    def label(self) -> str:
        """The name in the row's first column, and a part of the seed."""

    @property
    def count(self) -> int:
        """The number of conversations unless the command says."""

    async def run(self, texts: Sequence[list[str]], seed: int, converse: Converse) -> None:
        """Have each conversation."""


@dataclass(frozen=True, slots=True)
class Clients:
    """A number of clients that have one conversation after another."""

    number: int

    @property
    def label(self) -> str:
        return str(self.number)

    @property
    def count(self) -> int:
        return 4 * self.number

    async def run(self, texts: Sequence[list[str]], seed: int, converse: Converse) -> None:
        waiting = iter(texts)

        async def client() -> None:
            for turns in waiting:
                await converse(turns)

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(self.number, len(texts))):
                clients.create_task(client())


@dataclass(frozen=True, slots=True)
class Poisson:
    """Conversations that begin at random times, `rate` a second in the mean, whether or not earlier ones have ended."""

    rate: float

    @property
    def label(self) -> str:
        return f"{self.rate:g}/s"

    @property
    def count(self) -> int:
        return max(1, round(SECONDS * self.rate))

    async def run(self, texts: Sequence[list[str]], seed: int, converse: Converse) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as begun:
            for turns, offset in zip(texts, self.offsets(seed), strict=False):
                await asyncio.sleep(start + offset - loop.time())
                begun.create_task(converse(turns))

    def offsets(self, seed: int) -> Iterator[float]:
        """Yield the beginnings without end, in seconds, with exponentially distributed gaps."""
        source = random.Random(f"{seed} arrivals {self.label}")
        offset = 0.0
        while True:
            offset += source.expovariate(self.rate)
            yield offset
