"""The values of the engine's Prometheus metrics, for programs in the same process."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

PREFIXES = ("vllm:", "fairlead:")
BUCKET_LABEL = "le"


@dataclass(frozen=True, slots=True)
class Counter:
    """A count that only grows."""

    name: str
    labels: dict[str, str]
    value: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """A current value."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observed values. buckets: the number of values up to each bound, by the bound as text."""

    name: str
    labels: dict[str, str]
    count: int
    sum: float
    buckets: dict[str, int]


Metric = Counter | Gauge | Histogram


def read_metrics(registry: CollectorRegistry = REGISTRY) -> list[Metric]:
    """Return every metric of the engines in this process, one for each set of labels."""
    metrics: list[Metric] = []
    for family in registry.collect():
        if family.name.startswith(PREFIXES):
            metrics += _read_family(family)
    return metrics


def _read_family(family: Family) -> Iterator[Metric]:
    if family.type == "histogram":
        yield from _read_histograms(family)
        return
    for sample in family.samples:
        if family.type == "counter" and sample.name.endswith("_total"):
            yield Counter(family.name, sample.labels, int(sample.value))
        elif family.type == "gauge":
            yield Gauge(family.name, sample.labels, sample.value)


def _read_histograms(family: Family) -> Iterator[Histogram]:
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != BUCKET_LABEL}
        groups.setdefault(tuple(labels.items()), []).append(sample)
    for key, samples in groups.items():
        buckets = {
            one.labels[BUCKET_LABEL]: int(one.value) for one in samples if one.name.endswith("_bucket")
        }
        count = next(int(one.value) for one in samples if one.name.endswith("_count"))
        total = next(one.value for one in samples if one.name.endswith("_sum"))
        yield Histogram(family.name, dict(key), count, total, buckets)
