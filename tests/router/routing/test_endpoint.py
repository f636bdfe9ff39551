"""Endpoints: their addresses, and what engines report of themselves."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import EngineReport, Fingerprint, ReportedLoad
from engine_server.router.routing.endpoint import REPORT_SECONDS, Address, Endpoint, SocketPath

REPORT = EngineReport(b"abc", load=ReportedLoad(3, 0, 1, 0.5))


@pytest.mark.parametrize(
    "url", ["https://h:1", "h:1", "http://", "http://h:1/v1", "http://h:x", "http://h:1?a=b"]
)
def test_refuses_a_url_that_is_not_http_host_port(url):
    with pytest.raises(ValueError):
        Address.parse(url)


@pytest.mark.parametrize(
    ("url", "parsed", "shown"),
    [
        ("http://h:1/", Address("h", 1), "http://h:1"),
        ("http://[::1]:8", Address("::1", 8), "http://[::1]:8"),
        ("http://h", Address("h", 80), "http://h:80"),
    ],
)
def test_parses_a_url_and_shows_it_in_full(url, parsed, shown):
    assert Address.parse(url) == parsed and str(Address.parse(url)) == shown


def test_spans_name_the_path_of_a_unix_socket_in_place_of_host_and_port():
    assert SocketPath.parse("unix:/run/a.sock").attributes() == {"server.address": "/run/a.sock"}
    assert Address("h", 1).attributes() == {"server.address": "h", "server.port": 1}


def test_counts_the_load_of_other_routers_for_a_second_after_the_report():
    endpoint = Endpoint(Key("n", "m"), Address("h", 1))
    endpoint.count(perf_counter(), 0)
    endpoint.record_report(EngineReport(load=ReportedLoad(3, 2, 59, 0.125)))

    assert endpoint.load(endpoint.reported_at) == 5.0
    assert endpoint.load(endpoint.reported_at + REPORT_SECONDS) == 1.0


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))
def test_the_load_of_other_routers_is_never_below_zero(running, waiting, own):
    endpoint = Endpoint(Key("n", "m"), Address("h", 1))
    for _ in range(own):
        endpoint.count(perf_counter(), 0)
    endpoint.record_report(EngineReport(load=ReportedLoad(running, waiting, 0, 1.0)))

    assert endpoint.load(endpoint.reported_at) == max(own, running + waiting)


def test_a_share_grows_from_a_tenth_to_the_whole():
    endpoint = Endpoint(Key("n", "m"), Address("h", 1))
    endpoint.begin_ramp(100.0)

    assert [endpoint.share(100.0 + seconds) for seconds in (0.0, 5.0, 10.0, 60.0)] == [0.1, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("field", "load"),
    [
        (b"running=3, waiting=1, room=60, kv=0.125", ReportedLoad(3, 1, 60, 0.125)),
        (b"running=3, waiting=1, room=60, kv=1, unknown=7", ReportedLoad(3, 1, 60, 1.0)),
        (b"running=3, waiting=1, room=60, kv=1.000, context=4096", ReportedLoad(3, 1, 60, 1.0, 4096)),
        (b"running=3, waiting=1, room=60, kv=0.5, context=8, more=1", ReportedLoad(3, 1, 60, 0.5, 8)),
        (b"running=999999999, waiting=0, room=0, kv=0.000", ReportedLoad(999_999_999, 0, 0, 0.0)),
        (b"running=1000000000, waiting=0, room=0, kv=0", None),
        (b"running=1, waiting=0, room=0, kv=1.001", None),
        (b"running=1, waiting=0, room=0, kv=17" + b"0" * 307, None),
        (b"running=1, waiting=0, room=0, kv=" + b"1" * 310, None),
        (b"running=" + b"1" * 310 + b", waiting=0, room=0, kv=0", None),
        (b"running=1, waiting=0, room=0, kv=0.5x", None),
        (b"running=many, waiting=2", None),
        (b"running=-1, waiting=0, room=1, kv=0", None),
        (b"running=inf, waiting=2", None),
        (b"running=1, waiting=0, room=1, kv=nan", None),
        (b"\xff=,,=", None),
        (b"", None),
    ],
)
def test_reads_the_load_that_an_engine_reports(field, load):
    assert ReportedLoad.parse(field) == load


def test_a_load_that_is_not_valid_leaves_the_last_report_as_it_was():
    endpoint = Endpoint(Key("default", "m"), Address("h", 1))
    endpoint.record_report(REPORT)
    reported_at = endpoint.reported_at
    invalid = EngineReport.parse(
        {
            b"fairlead-model": b"x" * (Fingerprint.LONGEST + 1),
            b"fairlead-load": b"running=3, waiting=0, room=1, kv=1" + b"7" * 308,
            b"fairlead-stream": b"x",
            b"fairlead-usage": b"prompt=1, completion=" + b"9" * 10,
        }
    )
    endpoint.record_report(invalid)

    assert invalid == EngineReport(num_invalid=4)
    assert endpoint.reported_at == reported_at
    assert endpoint.reported_load == ReportedLoad(3, 0, 1, 0.5)
    assert endpoint.fingerprints == {"": b"abc"}


def test_an_endpoint_keeps_the_last_report_when_an_answer_has_none():
    endpoint = Endpoint(Key("default", "m"), Address("h", 1))
    endpoint.record_report(REPORT)
    reported_at = endpoint.reported_at
    endpoint.record_report(EngineReport.parse({}))

    assert endpoint.reported_at == reported_at > 0.0
    assert endpoint.reported_load == ReportedLoad(3, 0, 1, 0.5)
    assert endpoint.fingerprints == {"": b"abc"}
