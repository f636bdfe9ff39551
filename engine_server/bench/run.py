"""The run of a load: its warm-up, and a row for each rule of arrivals."""

import sys
import time
from collections.abc import Sequence
from itertools import islice

import aiohttp

from engine_server.bench.arrivals import Arrivals
from engine_server.bench.client import Answer, Client
from engine_server.bench.load import Load, Words, conversations
from engine_server.bench.rows import TITLE, Measurement, line, summarize


class BenchError(RuntimeError):
    """The load can't be run as configured."""


async def bench(
    load: Load,
    arrivals: Sequence[Arrivals],
    rows: list[Measurement],
    count: int | None = None,
    api_key: str = "",
) -> None:
    """Measure each rule of arrivals, print its row and append it to `rows`. Raises BenchError.

    A cancellation ends a row too, with the answers that are complete. count: conversations of each row; None: as many
    as its rule has by default.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = Client(session, load, api_key)
        words = await calibrate(client, load)
        print(TITLE, flush=True)
        for rule in arrivals:
            answers: list[Answer] = []
            start = time.perf_counter()
            try:
                await measure(client, load, rule, count or rule.count, words, answers)
            finally:
                if answers:
                    rows.append(summarize(rule.label, answers, time.perf_counter() - start))
                    print(line(rows[-1]), flush=True)
                    for error in rows[-1].first_errors:
                        print(f"  error: {error}", file=sys.stderr, flush=True)


async def calibrate(client: Client, load: Load) -> Words:
    """Return the numbers of words that give the requested numbers of tokens; this is also the warm-up.

    The tokens of a text are taken to be proportional to its words, after those that the server adds to the first.
    """
    added = max(0, (await warm_up(client, load, 1)).prompt_tokens - 1)
    wanted = max(1, load.input_tokens - added)
    words = wanted
    for _ in range(4):
        answer = await warm_up(client, load, words)
        if answer.prompt_tokens in (0, load.input_tokens):
            break
        words = max(1, round(words * wanted / max(1, answer.prompt_tokens - added)))
    return Words(words, max(1, round(load.turn_tokens * words / wanted)))


async def warm_up(client: Client, load: Load, words: int) -> Answer:
    """Request an answer to a text of so many words, which no row has. Raises BenchError."""
    (first, *_) = next(conversations(load, Words(words, 1), f"warm-up {words}"))
    answer = await client.ask([first])
    if answer.error:
        raise BenchError(f"the first request failed: {answer.error}")
    return answer


async def measure(
    client: Client, load: Load, arrivals: Arrivals, count: int, words: Words, answers: list[Answer]
) -> None:
    """Have `count` conversations, and append the answers as they end. A failed answer ends its conversation."""

    async def converse(texts: list[str]) -> None:
        turns: list[str] = []
        for text in texts:
            answer = await client.ask([*turns, text])
            answers.append(answer)
            if answer.error:
                return
            turns += [text, answer.text]

    await arrivals.run(list(islice(conversations(load, words, arrivals.label), count)), load.seed, converse)
