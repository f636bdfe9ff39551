"""The metrics page: valid, documented, and without series of deployments and keys that are gone."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from queried_metrics import exported_metrics, queried_metrics

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.callers.ledger import Ledger
from engine_server.router.exposition import PREFIX, Exposition, ProcessState
from engine_server.router.metrics import Ended, Metrics, WatchState
from engine_server.router.routing.directory import Deployment, Directory
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import Cause, Health

DOCUMENT = Path(__file__).parents[2] / "docs" / "router.md"
MODEL = Key("default", "m")
ANSWERED = Ended(
    deployment=MODEL,
    status=200,
    time_to_first_byte=0.02,
    duration=1.5,
    key="team-a",
    usage=ReportedUsage(12, 80),
)


class Page:
    """An exposition of counters that a test sets."""

    def __init__(self) -> None:
        self.metrics, self.health, self.ledger = Metrics(), Health(), Ledger(0.0)
        self.directory = Directory("least_load", on_added=self.health.add, on_removed=self.health.remove)
        self.held: dict[Key, int] = {}
        self.watches: list[WatchState] = []
        self.buffer_bytes = self.forgotten = 0
        self.dropped = 0
        self._exposition = Exposition(
            self.metrics,
            self.directory,
            self.health,
            self.ledger,
            lambda: self.held,
            ProcessState(
                lambda: self.watches, lambda: self.buffer_bytes, lambda: self.forgotten, lambda: self.dropped
            ),
        )

    def text(self) -> str:
        return self._exposition.text().decode()

    def families(self) -> dict[str, str]:
        """Return the name of each metric as it is queried, with its type."""
        found = text_string_to_metric_families(self.text())
        return {family.name + ("_total" if family.type == "counter" else ""): family.type for family in found}

    def samples(self) -> dict[tuple[str, str], float]:
        """Return the value of each series, by its name and its labels."""
        return {
            (
                sample.name.removeprefix(PREFIX),
                ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items())),
            ): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }


@pytest.fixture
async def page() -> Page:
    page = Page()
    page.directory.put(Deployment(MODEL, ("m",), (Address("10.0.0.1", 8000),), vouched=True))
    return page


def test_every_metric_is_documented_and_every_documented_metric_exists(page):
    documented = set(re.findall(r"`((?:fairlead_router|process)_\w+)", DOCUMENT.read_text()))
    assert page.families().keys() == documented


def test_every_metric_of_routers_in_dashboards_and_alerts_exists(page):
    assert queried_metrics("fairlead_router_") <= exported_metrics(page.text())


async def test_failures_and_ejections_are_exported_as_zero_before_the_first(page):
    before = page.samples()
    (endpoint,) = page.directory.resolve("m").endpoints
    page.metrics.record(Ended(deployment=MODEL, status=503, duration=0.1))
    page.health.eject(endpoint, "text of an error", Cause.SILENT)
    after = page.samples()
    for series in (("requests_total", "code=503,model=default/m"), ("ejections_total", "reason=silent")):
        assert (before[series], after[series]) == (0, 1)


async def test_counts_everything_by_names_of_operators_and_codes(page):
    page.metrics.record(ANSWERED)
    page.metrics.record(Ended(deployment=MODEL, status=200, duration=1.5, usage=ReportedUsage(1, 2)))
    page.metrics.record(Ended(deployment=None, status=404, time_to_first_byte=0.001, duration=0.001))
    page.ledger.accounts["team-a"] = None
    page.metrics.errors[None, "model_not_found"] += 1
    page.metrics.retries["refused"] += 2
    page.metrics.resumed["draining"] += 3
    page.metrics.interrupted = 4
    page.metrics.in_flight = 5
    page.held = {MODEL: 6}
    page.watches = [WatchState("EndpointSlice", "x", 7.5, 8)]
    page.dropped = 9
    page.buffer_bytes, page.forgotten = 10, 2
    (endpoint,) = page.directory.resolve("m").endpoints
    page.health.eject(endpoint, "text of an error", Cause.REFUSING)
    samples = page.samples()
    for name, labels, value in (
        ("requests_total", "code=200,model=default/m", 2),
        ("requests_total", "code=404,model=", 1),
        ("request_duration_seconds_count", "model=default/m", 2),
        ("request_duration_seconds_sum", "model=default/m", 3.0),
        ("time_to_first_byte_seconds_count", "model=default/m", 1),
        ("time_to_first_byte_seconds_bucket", "le=0.01,model=default/m", 0),
        ("time_to_first_byte_seconds_bucket", "le=0.025,model=default/m", 1),
        ("errors_total", "model=,reason=model_not_found", 1),
        ("tokens_total", "key=team-a,kind=prompt", 12),
        ("tokens_total", "key=team-a,kind=completion", 80),
        ("tokens_total", "key=,kind=completion", 2),
        ("retries_total", "reason=refused", 2),
        ("resumed_total", "reason=draining", 3),
        ("interrupted_total", "", 4),
        ("in_flight", "", 5),
        ("held", "model=default/m", 6),
        ("watch_age_seconds", "kind=EndpointSlice,namespace=x", 7.5),
        ("watch_failures_total", "kind=EndpointSlice,namespace=x", 8),
        ("log_lines_dropped_total", "", 9),
        ("buffer_bytes", "", 10),
        ("forgotten_bodies_total", "", 2),
        ("ejections_total", "reason=refusing", 1),
        ("endpoint_live", "deployment=m,endpoint=http://10.0.0.1:8000,model=default/m,namespace=default", 0),
    ):
        assert samples[name, labels] == value


async def test_shows_how_often_a_ring_chose_the_keys_own_replica_and_another(page):
    addresses = tuple(Address("10.0.0.1", port) for port in (1, 2))
    page.directory.put(Deployment(Key("default", "p"), ("p",), addresses, policy="prefix", vouched=True))
    route = page.directory.resolve("p")
    assert page.samples()["ring_picks_total", "model=default/p,policy=prefix,result=hit"] == 0
    route.ring_picks.update({True: 2, False: 1})
    samples = page.samples()
    assert samples["ring_picks_total", "model=default/p,policy=prefix,result=hit"] == 2
    assert samples["ring_picks_total", "model=default/p,policy=prefix,result=spill"] == 1


async def test_series_of_deployments_and_keys_end_with_them(page):
    page.ledger.accounts["team-a"] = None
    page.metrics.record(ANSWERED)
    page.metrics.errors[MODEL, "saturated"] += 1
    assert any("default/m" in labels for _, labels in page.samples())
    page.directory.remove(MODEL)
    del page.ledger.accounts["team-a"]
    page.metrics.record(ANSWERED)  # it was still in flight
    left = {labels for _, labels in page.samples()}
    assert not any("default" in labels or "team-a" in labels for labels in left)


def test_statuses_that_engines_choose_count_as_their_class(page: Page) -> None:
    for status in range(200, 1000):
        page.metrics.record(msgspec.structs.replace(ANSWERED, status=status, adapter="a"))
    page.metrics.flush()
    codes = {code for _, code in page.metrics.requests}
    assert len(codes) < 40 and {"200", "429", "503", "4xx", "9xx"} <= codes
    assert sum(page.metrics.requests.values()) == 800
    assert {code for _, _, code in page.metrics.adapter_requests} == codes
