"""CPU time to write the text of /metrics, by the Prometheus library and by our exposition.

    python -m benchmarks.metrics [--series 10000] [--rounds 20]

The registry has as many series as are asked for, four fifths of them in histograms. The first text by our exposition is
made by the library, and its time is given separately. Medians are printed and saved under benchmarks/results/.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from benchmarks.record import save
from engine_server.telemetry.exposition import OPEN_METRICS, TEXT, Exposition

BUCKETS = tuple(number / 10 for number in range(22))


def registry_of(series: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    histogram = Histogram(
        "vllm:waits_seconds", "Waits.", ("model_name", "engine"), registry=registry, buckets=BUCKETS
    )
    # A child has its buckets, the last of which has no bound, the count, the sum, and the time of its creation.
    children = series * 4 // 5 // (len(BUCKETS) + 4)
    for number in range(children):
        histogram.labels("model", str(number)).observe(number % 3)
    counter = Counter("vllm:things", "Things.", ("model_name", "engine"), registry=registry)
    for number in range((series - children * (len(BUCKETS) + 4)) // 2):
        counter.labels("model", str(number)).inc(number)
    return registry


def milliseconds(render: Callable[[Any], object], argument: object) -> float:
    """Return the CPU time of one call."""
    started = time.thread_time()
    render(argument)
    return (time.thread_time() - started) * 1000


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure the text of /metrics.")
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args(argv)
    registry = registry_of(args.series)
    figures: dict[str, object] = {"series": args.series, "rounds": args.rounds}
    for name, form in (("text", TEXT), ("openmetrics", OPEN_METRICS)):
        exposition = Exposition(registry)
        first = milliseconds(exposition.render, form)
        ours = [milliseconds(exposition.render, form) for _ in range(args.rounds)]
        library = [milliseconds(form.encode, registry) for _ in range(args.rounds)]
        figures[name] = {
            "first_ms": round(first, 1),
            "median_ms": round(statistics.median(ours), 1),
            "maximum_ms": round(max(ours), 1),
            "library_median_ms": round(statistics.median(library), 1),
        }
        print(name, figures[name])
    print(save("metrics", figures))


if __name__ == "__main__":
    main(sys.argv[1:])
