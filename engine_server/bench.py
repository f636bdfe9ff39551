"""`fairlead bench`: measure any OpenAI-compatible server under load, with percentiles and a saved result."""

import argparse
import asyncio
import json
import os
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import aiohttp

# Short common words, one token each in most vocabularies with the space before it.
WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city name president team minute idea body "
    "information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
).split()
PACKAGES = ("fairlead", "torch", "triton", "transformers", "vllm")


class BenchError(RuntimeError):
    """The load can't be run as configured."""


@dataclass(frozen=True, slots=True)
class Load:
    """The parameters of every request."""

    base_url: str
    model: str
    input_tokens: int
    output_tokens: int
    seed: int


@dataclass(slots=True)
class Answer:
    """One request's times, in seconds, and its numbers of tokens as the server reports them."""

    sent: float
    # The arrival of each event with text.
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def first(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table; times are in milliseconds except `seconds`."""

    concurrency: int
    requests: int
    errors: int
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    # Means over the requests.
    prompt_tokens: float
    output_tokens: float
    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float
    first_errors: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fairlead bench", description="Measure an OpenAI-compatible server under load."
    )
    parser.add_argument("--base-url", required=True, metavar="URL", help="with or without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--input-tokens", type=positive, default=128)
    parser.add_argument("--output-tokens", type=positive, default=128)
    parser.add_argument("--concurrency", type=positive, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--requests", type=positive, help="for each concurrency (default: 4 times as many)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the prompts; another one misses every cache"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to save the result to, as JSON")
    arguments = parser.parse_args(argv)
    load = Load(
        base_url=arguments.base_url.rstrip("/").removesuffix("/v1"),
        model=arguments.model,
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        seed=arguments.seed,
    )
    try:
        rows = asyncio.run(bench(load, arguments.concurrency, arguments.requests))
    except BenchError as error:
        print(f"fairlead bench: {error}", file=sys.stderr)
        return 1
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result(load, rows, argv), indent=1) + "\n")
    return 1 if any(row.errors for row in rows) else 0


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


async def bench(load: Load, concurrencies: Sequence[int], requests: int | None) -> list[Measurement]:
    """Measure each concurrency and print its row."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    rows = []
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        words = await calibrate(session, load)
        print(TITLE, flush=True)
        for concurrency in concurrencies:
            count = requests or 4 * concurrency
            rows.append(await measure(session, load, concurrency, count, words))
            print(line(rows[-1]), flush=True)
            for error in rows[-1].first_errors:
                print(f"  error: {error}", file=sys.stderr, flush=True)
    return rows


async def calibrate(session: aiohttp.ClientSession, load: Load) -> int:
    """Return the number of words that the server tokenizes to `input_tokens` tokens; this is also the warm-up."""
    words = load.input_tokens
    for _ in range(4):
        answer = await ask(session, load, prompt(load, random.Random(-1 - words), words))
        if answer.error:
            raise BenchError(f"the first request failed: {answer.error}")
        if answer.prompt_tokens in (0, load.input_tokens):
            break
        words = max(1, round(words * load.input_tokens / answer.prompt_tokens))
    return words


async def measure(
    session: aiohttp.ClientSession, load: Load, concurrency: int, count: int, words: int
) -> Measurement:
    source = random.Random(f"{load.seed} {concurrency}")
    waiting = iter([prompt(load, source, words) for _ in range(count)])
    answers: list[Answer] = []

    async def client() -> None:
        for text in waiting:
            answers.append(await ask(session, load, text))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(concurrency, count))))
    return summarize(concurrency, answers, time.perf_counter() - start)


def prompt(load: Load, source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words))


async def ask(session: aiohttp.ClientSession, load: Load, text: str) -> Answer:
    """Request a streamed completion of `output_tokens` tokens, exactly if the server knows ignore_eos."""
    body = {
        "model": load.model,
        "prompt": text,
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(time.perf_counter())
    try:
        async with session.post(f"{load.base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {(await response.text())[:200]}"
                return answer
            async for raw in response.content:
                if raw.startswith(b"data: {"):
                    record(answer, json.loads(raw[6:]))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if not answer.error and not answer.arrivals:
        answer.error = "the stream ended without a token"
    return answer


def record(answer: Answer, event: dict[str, Any]) -> None:
    """Add an event of the stream to the answer."""
    if "error" in event:
        answer.error = str(event["error"])[:200]
    if any(choice.get("text") for choice in event.get("choices", ())):
        answer.arrivals.append(time.perf_counter())
    if usage := event.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.output_tokens = usage["completion_tokens"]


def summarize(concurrency: int, answers: Sequence[Answer], seconds: float) -> Measurement:
    good = [answer for answer in answers if not answer.error]
    errors = [answer.error for answer in answers if answer.error]
    firsts = [1000 * answer.first for answer in good]
    gaps = [1000 * gap for answer in good for gap in answer.gaps]
    return Measurement(
        concurrency=concurrency,
        requests=len(answers),
        errors=len(errors),
        seconds=round(seconds, 3),
        requests_per_second=round(len(good) / seconds, 3),
        output_tokens_per_second=round(sum(answer.output_tokens for answer in good) / seconds, 1),
        prompt_tokens=mean([answer.prompt_tokens for answer in good]),
        output_tokens=mean([answer.output_tokens for answer in good]),
        ttft_p50=percentile(firsts, 50),
        ttft_p99=percentile(firsts, 99),
        inter_token_p50=percentile(gaps, 50),
        inter_token_p99=percentile(gaps, 99),
        first_errors=tuple(dict.fromkeys(errors))[:3],
    )


def mean(values: Sequence[int]) -> float:
    return round(statistics.fmean(values), 1) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = int(-(-len(ordered) * percent // 100))
    return round(ordered[max(0, rank - 1)], 2)


COLUMNS: tuple[tuple[str, Callable[[Measurement], str]], ...] = (
    ("clients", lambda row: str(row.concurrency)),
    ("requests", lambda row: str(row.requests)),
    ("errors", lambda row: str(row.errors)),
    ("req/s", lambda row: f"{row.requests_per_second:.2f}"),
    ("output tok/s", lambda row: f"{row.output_tokens_per_second:.1f}"),
    ("TTFT p50 ms", lambda row: f"{row.ttft_p50:.1f}"),
    ("p99", lambda row: f"{row.ttft_p99:.1f}"),
    ("inter-token p50 ms", lambda row: f"{row.inter_token_p50:.1f}"),
    ("p99", lambda row: f"{row.inter_token_p99:.1f}"),
    ("tokens in/out", lambda row: f"{row.prompt_tokens:.0f}/{row.output_tokens:.0f}"),
)
TITLE = "  ".join(f"{title:>7}" for title, _ in COLUMNS)


def line(row: Measurement) -> str:
    return "  ".join(f"{cell(row):>{max(7, len(title))}}" for title, cell in COLUMNS)


def result(load: Load, rows: Sequence[Measurement], argv: Sequence[str]) -> dict[str, Any]:
    """Return the result to save, with everything needed to repeat and compare it."""
    return {
        **provenance("fairlead", "bench", *argv),
        "load": asdict(load),
        "rows": [asdict(row) for row in rows],
    }


def provenance(*command: str) -> dict[str, Any]:
    """Return the date, command, machine and versions of a measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "machine": {
            "cpu": processor(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {"python": platform.python_version(), **installed()},
    }


def processor() -> str:
    """Return the processor's model name, or its architecture where the system doesn't report one."""
    try:
        listed = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        listed = []
    names = [entry.partition(":")[2].strip() for entry in listed if entry.startswith("model name")]
    return names[0] if names else platform.machine()


def installed() -> dict[str, str]:
    """Return the versions of the packages installed here, where the client runs."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
