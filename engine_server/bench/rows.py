"""The rows of a measurement, and their table."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_server.bench.client import Answer


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table; times are in milliseconds except `seconds`."""

    # The rule of its arrivals: a number of clients, or a rate.
    load: str
    requests: int
    errors: int
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    # Means over the requests.
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float
    first_errors: tuple[str, ...] = ()


def summarize(load: str, answers: Sequence[Answer], seconds: float) -> Measurement:
    good = [answer for answer in answers if not answer.error]
    errors = [answer.error for answer in answers if answer.error]
    firsts = [1000 * answer.first for answer in good]
    gaps = [1000 * gap for answer in good for gap in answer.gaps]
    return Measurement(
        load=load,
        requests=len(answers),
        errors=len(errors),
        seconds=round(seconds, 3),
        requests_per_second=round(len(good) / seconds, 3),
        output_tokens_per_second=round(sum(answer.output_tokens for answer in good) / seconds, 1),
        prompt_tokens=mean([answer.prompt_tokens for answer in good]),
        cached_tokens=mean([answer.cached_tokens for answer in good]),
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
    ("load", lambda row: row.load),
    ("requests", lambda row: str(row.requests)),
    ("errors", lambda row: str(row.errors)),
    ("req/s", lambda row: f"{row.requests_per_second:.2f}"),
    ("output tok/s", lambda row: f"{row.output_tokens_per_second:.1f}"),
    ("TTFT p50 ms", lambda row: f"{row.ttft_p50:.1f}"),
    ("p99", lambda row: f"{row.ttft_p99:.1f}"),
    ("inter-token p50 ms", lambda row: f"{row.inter_token_p50:.1f}"),
    ("p99", lambda row: f"{row.inter_token_p99:.1f}"),
    (
        "tokens in/cached/out",
        lambda row: f"{row.prompt_tokens:.0f}/{row.cached_tokens:.0f}/{row.output_tokens:.0f}",
    ),
)
TITLE = "  ".join(f"{title:>7}" for title, _ in COLUMNS)


def line(row: Measurement) -> str:
    return "  ".join(f"{cell(row):>{max(7, len(title))}}" for title, cell in COLUMNS)
