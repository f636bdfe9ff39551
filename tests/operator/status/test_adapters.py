"""Adapters in the status: the pods that serve each, and the condition AdaptersReady."""

from typing import Any

import msgspec
from llm_operator.api.spec import parse
from llm_operator.api.status import ServedAdapter
from llm_operator.observed import Observed, PodAdapters, Replica, adapters_key
from llm_operator.status.adapters import adapters_ready, served_adapters
from llm_operator.status.assess import assess

from engine_server.contract.cluster.adapters import (
    AdapterState,
    DeploymentAdapter,
    WantedAdapter,
    WantedAdapters,
)

NAME = "smollm2"
STARTED = "2026-01-01T00:00:00Z"


def pod(name: str, is_ready: bool = True, **metadata: str) -> dict[str, Any]:
    running = {"name": "engine", "state": {"running": {"startedAt": STARTED}}}
    return {
        "metadata": {"name": name, **metadata},
        "status": {
            "podIP": f"10.0.0.{name[-1]}",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [running],
        },
    }


def answer(name: str, *states: AdapterState, problem: str = "") -> PodAdapters:
    return PodAdapters(Replica(name, STARTED, f"10.0.0.{name[-1]}"), states, problem)


def ready(name: str, uri: str, digest: str) -> AdapterState:
    return AdapterState(name, uri, "ready", digest)


def observed(
    wanted: dict[str, str] | None,
    *answers: PodAdapters,
    pods: tuple[dict[str, Any], ...] = (pod("a1"), pod("b2")),
) -> Observed:
    children = {}
    if wanted is not None:
        content = WantedAdapters([WantedAdapter(*item) for item in wanted.items()])
        children[adapters_key(NAME)] = {"data": {"adapters.json": msgspec.json.encode(content).decode()}}
    subject = {"metadata": {"name": NAME, "namespace": "default", "generation": 1}}
    found = {each.replica.pod: each for each in answers}
    return Observed(subject=subject, children=children, pods=pods, pod_adapters=found)


def condition(state: Observed) -> tuple[bool, str, str]:
    verdict = adapters_ready(None, state)
    assert verdict is not None
    return tuple(verdict)  # type: ignore[return-value]


def test_every_ready_replica_serves_every_adapter() -> None:
    state = observed({"x": "u"}, *(answer(name, ready("x", "u", "h")) for name in ("a1", "b2")))

    assert served_adapters(None, state) == (ServedAdapter(name="x", hash="h", pods=("a1", "b2")),)
    assert condition(state) == (True, "AdaptersServed", "2 of 2 replicas serve x")


def test_a_replica_that_loads_an_adapter_is_not_listed() -> None:
    state = observed(
        {"x": "u"}, answer("a1", ready("x", "u", "h")), answer("b2", AdapterState("x", "u", "loading"))
    )

    assert served_adapters(None, state) == (ServedAdapter(name="x", hash="h", pods=("a1",)),)
    assert condition(state)[:2] == (False, "LoadingAdapters")
    assert "1 of 2 replicas serve it" in condition(state)[2]


def test_a_replica_whose_adapter_gets_new_content_goes_on_serving_the_old_one() -> None:
    state = observed(
        {"x": "new"},
        answer("a1", ready("x", "old", "1")),
        answer("b2", AdapterState("x", "new", "failed", "1", "no folder at new")),
    )

    (entry,) = served_adapters(None, state) or ()
    assert (entry.pods, entry.hash, entry.error) == (("a1", "b2"), "1", "no folder at new")
    assert condition(state) == (False, "AdapterFailed", "the adapter x: no folder at new")


def test_the_first_failure_is_reported_with_its_adapter() -> None:
    states = ready("good", "u", "h"), AdapterState("broken", "v", "failed", None, "no folder at v")
    state = observed({"good": "u", "broken": "v"}, answer("a1", *states), answer("b2", *states))

    good, broken = served_adapters(None, state) or ()
    assert (good.pods, good.error) == (("a1", "b2"), None)
    assert (broken.pods, broken.error) == ((), "no folder at v")
    assert condition(state) == (False, "AdapterFailed", "the adapter broken: no folder at v")


def test_a_replica_that_does_not_answer_counts_with_what_it_served_last() -> None:
    reached = answer("b2", ready("x", "u", "h"), problem="the admin API does not answer: timeout")
    state = observed({"x": "u"}, answer("a1", ready("x", "u", "h")), reached)

    (entry,) = served_adapters(None, state) or ()
    assert entry.pods == ("a1", "b2")
    assert condition(state)[:2] == (False, "EngineUnreachable")
    assert "b2: the admin API does not answer: timeout" in condition(state)[2]


def test_only_ready_replicas_count() -> None:
    pods = (pod("a1"), pod("b2", is_ready=False), pod("c3", deletionTimestamp=STARTED))
    answers = [answer(name, ready("x", "u", "h")) for name in ("a1", "b2", "c3")]
    state = observed({"x": "u"}, *answers, pods=pods)

    assert served_adapters(None, state) == (ServedAdapter(name="x", hash="h", pods=("a1",)),)
    assert condition(state)[0]


def test_an_answer_from_before_a_restart_does_not_count() -> None:
    earlier = PodAdapters(Replica("a1", "2025-01-01T00:00:00Z", "10.0.0.1"), (ready("x", "u", "h"),))
    state = observed({"x": "u"}, earlier, pods=(pod("a1"),))

    assert served_adapters(None, state) == (ServedAdapter(name="x"),)
    assert condition(state)[:2] == (False, "LoadingAdapters")


def test_nothing_is_served_without_a_ready_replica() -> None:
    state = observed({"x": "u"}, pods=())

    assert served_adapters(None, state) == (ServedAdapter(name="x"),)
    assert condition(state)[:2] == (False, "NoReadyReplica")


def test_engines_without_adapters_have_neither_entries_nor_the_condition(manifest: Any) -> None:
    status = assess(parse(manifest()).spec, observed(None))

    assert status.adapters is None and "adapters" not in status.as_manifest()
    assert "AdaptersReady" not in [each.type for each in status.conditions]


def test_the_status_is_what_the_router_reads(manifest: Any) -> None:
    wanted = {"x": "u", "y": "v"}
    state = observed(
        wanted, answer("a1", ready("x", "u", "h"), AdapterState("y", "v", "failed", None, "broken"))
    )

    reported = assess(parse(manifest()).spec, state).as_manifest()

    assert msgspec.convert(reported["adapters"], list[DeploymentAdapter]) == [
        DeploymentAdapter("x", "h", ["a1"]),
        DeploymentAdapter("y", None, [], "broken"),
    ]
    assert reported["adapters"][1] == {"name": "y", "error": "broken"}
    assert ServedAdapter.__struct_fields__ == DeploymentAdapter.__struct_fields__


def test_a_failure_names_the_uri_of_the_spec(manifest: Any) -> None:
    path = "/models/claim/x"
    failed = answer("a1", AdapterState("x", path, "failed", None, f"{path}: no folder at {path}"))
    adapters = [{"name": "x", "uri": "pvc://claim/x"}]
    spec = parse(manifest(model={"uri": "pvc://claim/model"}, adapters=adapters)).spec

    verdict = adapters_ready(spec, observed({"x": path}, failed, pods=(pod("a1"),)))

    assert verdict is not None
    assert verdict.message == "the adapter x: pvc://claim/x: no folder at pvc://claim/x"
