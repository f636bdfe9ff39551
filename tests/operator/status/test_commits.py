"""The commits of a model whose URI names a branch."""

from typing import Any

import pytest
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import ServedCommit
from llm_operator.observed import Observed, Replica
from llm_operator.status.assess import assess
from llm_operator.status.commits import mixed_revisions, replicas_to_ask, served_commits

HUB = LLMDeploymentSpec(Model("hf://org/name"))
OLD, NEW = "a" * 40, "b" * 40


def pod(name: str, replica_set: str = "rs-1", is_ready: bool = True) -> dict[str, Any]:
    running = {"name": "engine", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": replica_set}]},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [running],
        },
    }


def observed(
    *pods: dict[str, Any], commits: dict[str, str], reported: tuple[dict[str, Any], ...] = ()
) -> Observed:
    subject = {
        "metadata": {"name": "m", "namespace": "default", "generation": 1},
        "status": {"commits": list(reported)},
    }
    replica_sets = tuple({"metadata": {"uid": uid}} for uid in ("rs-1", "rs-2"))
    return Observed(subject=subject, pods=pods, replica_sets=replica_sets, commits=commits)


def degraded(state: Observed) -> tuple[str, str, str]:
    (found,) = (each for each in assess(None, state).conditions if each.type == "Degraded")
    return found.status, found.reason, found.message


def test_the_status_has_the_commit_of_ready_replicas() -> None:
    state = observed(pod("a"), pod("b"), pod("c", is_ready=False), commits={"a": NEW, "b": NEW, "c": OLD})

    assert assess(None, state).commits == (ServedCommit(NEW, ("a", "b")),)
    assert degraded(state)[:2] == ("False", "AsExpected")


def test_replicas_that_disagree_are_degraded_and_the_message_pins_the_commit_of_most() -> None:
    state = observed(pod("a"), pod("b"), pod("c"), commits={"a": OLD, "b": NEW, "c": NEW})

    assert assess(None, state).commits == (ServedCommit(OLD, ("a",)), ServedCommit(NEW, ("b", "c")))
    status, reason, message = degraded(state)
    assert (status, reason) == ("True", "MixedRevisions")
    assert message.endswith(f"{NEW} on 2, {OLD} on 1; pin one in model.uri: @{NEW}")


def test_replicas_of_two_templates_may_serve_different_commits() -> None:
    state = observed(pod("a"), pod("b", "rs-2"), commits={"a": OLD, "b": NEW})

    assert mixed_revisions(state) is None
    assert served_commits(state) == (ServedCommit(OLD, ("a",)), ServedCommit(NEW, ("b",)))


def test_engines_that_report_no_commit_are_no_difference() -> None:
    state = observed(pod("a"), pod("b"), commits={"a": "", "b": NEW})

    assert mixed_revisions(state) is None
    assert served_commits(state) == (ServedCommit(NEW, ("b",)),)
    assert served_commits(observed(pod("a"), commits={"a": ""})) is None


def test_an_operator_that_takes_over_keeps_what_was_reported_and_asks_for_the_rest() -> None:
    reported = ({"commit": OLD, "pods": ["a", "gone"]}, {"commit": NEW, "pods": ["b"]})
    state = observed(pod("a"), pod("b"), pod("c"), commits={}, reported=reported)

    assert served_commits(state) == (ServedCommit(OLD, ("a",)), ServedCommit(NEW, ("b",)))
    assert degraded(state)[1] == "MixedRevisions"
    assert replicas_to_ask(HUB, state) == (Replica("c", "2026-01-01T00:00:00Z", "10.0.0.1"),)


@pytest.mark.parametrize("uri", ["/models/m", "pvc://models/m", "s3://models/m", "pypi://m"])
def test_engines_of_a_model_of_no_hub_are_not_asked(uri: str) -> None:
    assert replicas_to_ask(LLMDeploymentSpec(Model(uri)), observed(pod("a"), commits={})) == ()


def test_engines_are_asked_while_the_spec_is_invalid() -> None:
    assert [replica.pod for replica in replicas_to_ask(None, observed(pod("a"), commits={}))] == ["a"]
