"""The page that lists deployments and endpoints."""

import json

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import EngineReport, ReportedLoad
from engine_server.router.endpoints_page import EndpointsPage
from engine_server.router.routing.directory import Adapter, Deployment, Directory
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import Health


async def test_lists_deployments_with_the_state_of_their_endpoints():
    health = Health()
    directory = Directory("least_load", on_added=health.add, on_removed=health.remove)
    addresses = tuple(Address("10.0.0.1", port) for port in range(1, 5))
    adapters = (Adapter("sql", addresses[:1]), Adapter("law", error="no space"))
    directory.put(Deployment(Key("b", "m"), ("m",), addresses, vouched=True, adapters=adapters))
    directory.put(Deployment(Key("a", "new"), ("m", "n"), (Address("10.0.0.2", 1),), created=1.0))
    live, full, ejected, _ = directory.resolve("b/m").endpoints
    live.count(1.0, 0)
    live.record_report(EngineReport(b"other"), "sql")
    live.record_report(EngineReport(b"hash", load=ReportedLoad(3, 0, 61, 0.125)))
    full.full_until = float("inf")
    health.eject(ejected, "connection refused")
    page = json.loads(EndpointsPage(directory, health).render())

    new, old = page["deployments"]
    assert (new["namespace"], new["name"], new["models"], new["policy"]) == ("a", "new", ["n"], "least_load")
    assert (old["namespace"], old["name"], old["models"]) == ("b", "m", ["m"])
    assert "adapters" not in new
    assert old["adapters"] == [
        {"name": "sql", "endpoints": ["http://10.0.0.1:1"]},
        {"name": "law", "endpoints": [], "error": "no space"},
    ]
    assert [endpoint["state"] for endpoint in new["endpoints"]] == ["starting"]
    assert [endpoint["state"] for endpoint in old["endpoints"]] == ["live", "full", "ejected", "live"]
    assert old["endpoints"][0] == {
        "address": "http://10.0.0.1:1",
        "state": "live",
        "in_flight": 1,
        "engine_model": "hash",
        "engine_load": {"running": 3, "waiting": 0, "room": 61, "kv": 0.125, "context": 0},
    }
    assert old["endpoints"][2]["ejected_for"] == "connection refused"
    assert old["endpoints"][2]["seconds_since_ejection"] >= 0.0
