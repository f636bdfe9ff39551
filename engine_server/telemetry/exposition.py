"""Prometheus' text formats of a registry, written fast enough for registries of many series.

The library makes the text of a family once for each set of children; later scrapes only fill in the values. The result
is the same as the library's byte for byte, except that exemplars, which we have none of, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Encoder = Callable[[Any], bytes]


class Format(NamedTuple):
    """A text format: the library's encoder of a registry, and the content type."""

    encode: Encoder
    content_type: str
    end: str = ""


TEXT = Format(generate_latest, CONTENT_TYPE_PLAIN_0_0_4)
# Names with colons need no escape; by default the library replaces the colons in the names of series alone.
OPEN_METRICS = Format(
    partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
    openmetrics.CONTENT_TYPE_LATEST,
    end="# EOF\n",
)
FORMATS = {"text/plain": TEXT, "application/openmetrics-text": OPEN_METRICS}

format_value = lru_cache(maxsize=16384)(floatToGoString)


class Families(NamedTuple):
    """A registry of some families, as the library's encoders take one."""

    families: list[Family]

    def collect(self) -> list[Family]:
        return self.families


class Template(NamedTuple):
    """The text of a family without its values."""

    # The metrics whose values are filled in, in order.
    children: list[Any]
    # The text before each value.
    parts: list[str]
    # The text after the last value.
    tail: str

    @classmethod
    def of(cls, collector: MetricWrapperBase, form: Format) -> Template:
        children, parts, text = children_of(collector), [], ""
        for line in encode_alone(collector, form).split("\n")[:-1]:  # labels may have other ends of lines
            name = line.partition(" ")[0].partition("{")[0]
            if line.startswith("#") or name == f"{collector._name}_created":
                text += line + "\n"
            else:
                parts.append(f"{text}{line.rpartition(' ')[0]} ")
                text = "\n"
        return cls(children, parts, text)

    def fill(self) -> str:
        numbers = [format_value(value) for child in self.children for value in values_of(child)]
        return "".join(chain.from_iterable(zip(self.parts, numbers, strict=True))) + self.tail


class Exposition:
    """The text of a registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._templates: dict[tuple[Format, Collector], Template] = {}

    def render(self, form: Format = TEXT) -> bytes:
        """Return the text. May run in a thread while metrics change, but in one at a time."""
        collectors = list(self._registry._collector_to_names)
        return ("".join(self._family(collector, form) for collector in collectors) + form.end).encode()

    def _family(self, collector: Collector, form: Format) -> str:
        if not isinstance(collector, MetricWrapperBase):
            return encode_alone(collector, form)
        template = self._templates.get((form, collector))
        while template is None or template.children != children_of(collector):
            template = self._templates[form, collector] = Template.of(collector, form)
        return template.fill()


def choose_format(accept: str) -> Format:
    """Return the first format of an Accept header that there is, by default the plain text."""
    names = (item.partition(";")[0].strip() for item in accept.split(","))
    return next((FORMATS[name] for name in names if name in FORMATS), TEXT)


def children_of(collector: MetricWrapperBase) -> list[Any]:
    return list(collector._metrics.values()) if hasattr(collector, "_metrics") else [collector]


def values_of(child: Any) -> list[float]:
    """Return the values of a metric's series, in the order of its text, except the time of its creation."""
    if isinstance(child, Histogram):
        counts = list(accumulate(bucket.get() for bucket in child._buckets))
        return (
            [*counts, counts[-1], child._sum.get()] if child._upper_bounds[0] >= 0 else [*counts, counts[-1]]
        )
    return [sample.value for sample in child._child_samples() if sample.name != "_created"]


def encode_alone(collector: Collector, form: Format) -> str:
    """Return the library's text of one collector."""
    return form.encode(Families(list(collector.collect()))).decode().removesuffix(form.end)
