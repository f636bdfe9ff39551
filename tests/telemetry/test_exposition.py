"""The text of /metrics, compared with the library's."""

import gc
from collections.abc import Iterator

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Enum,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    Summary,
)

from engine_server.telemetry.exposition import OPEN_METRICS, TEXT, Exposition, Format, choose_format


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector's own counters the same between two scrapes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("form", [TEXT, OPEN_METRICS])
def test_text_equals_the_librarys_for_every_kind_of_metric(form: Format) -> None:
    registry = CollectorRegistry()
    exposition = Exposition(registry)

    def check() -> None:
        assert exposition.render(form) == form.encode(registry)

    check()
    GCCollector(registry)
    counter = Counter("vllm:things", "With a \\ and\na line end.", ("model_name", "kind"), registry=registry)
    check()
    counter.labels('a "model"\n\\', "with blank and = and {}\u2028").inc(1e9)
    histogram = Histogram("waits_seconds", "Waits.", ("kind",), registry=registry, buckets=(0.1, 1, 2.5))
    histogram.labels("a").observe(0.5)
    histogram.labels("a").observe(100)
    signed = Histogram("errors", "With a negative bound.", registry=registry, buckets=(-1, 0, 1))
    signed.observe(-0.5)
    gauge = Gauge("level", "A level.", ("kind",), registry=registry)
    gauge.labels("infinite").set(float("inf"))
    Gauge("made_created", "A name that ends as the time of creation does.", registry=registry).set(5)
    Gauge("now", "A function.", registry=registry).set_function(lambda: 4.25)
    Info("build", "Labels.", registry=registry).info({"version": "1"})
    Enum("mood", "States.", registry=registry, states=["good", "bad"]).state("bad")
    Summary("sizes", "Sizes.", ("kind",), registry=registry).labels("x").observe(3)
    check()
    counter.labels("second", "child").inc(0.25)
    histogram.labels("a").observe(1.5)
    histogram.labels("b").observe(0)
    check()
    counter.remove("second", "child")
    counter.labels("third", "child").inc(12345678)
    gauge.clear()
    check()
    registry.unregister(counter)
    check()


def test_series_keep_their_colons_in_both_formats() -> None:
    registry = CollectorRegistry()
    Counter("vllm:tokens", "Tokens.", registry=registry).inc()
    exposition = Exposition(registry)
    for form in (TEXT, OPEN_METRICS):
        assert b"\nvllm:tokens_total 1.0\n" in exposition.render(form)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.1", OPEN_METRICS),
        ("text/html, text/plain, application/openmetrics-text", TEXT),
    ],
)
def test_format_is_the_first_accepted_one(accept: str, form: Format) -> None:
    assert choose_format(accept) is form
