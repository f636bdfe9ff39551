"""The scales of LLMDeployments that the operator scales."""

from typing import Any

from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.control.watching.scales import Scale, Scales, scale_of

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import PAUSED_ANNOTATION

KEY = Key("default", "m")


def manifest(autoscaling: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "m", "uid": "u", "resourceVersion": "7", **metadata},
        "spec": {"replicas": 3, "autoscaling": autoscaling},
        "status": {"readyReplicas": 2, "operator": "home/lease"},
    }


def test_reads_wanted_and_ready_replicas() -> None:
    assert scale_of(manifest({"max": 4})) == Scale(Autoscaling(max=4), 3, 2, "7", "u", "home/lease")


def test_null_counts_as_absent() -> None:
    found = scale_of(manifest({"max": 4, "targetInFlight": None}))
    assert found is not None and found.autoscaling.target_in_flight == 32
    assert scale_of(manifest(None)) is None


def test_leaves_out_what_is_invalid_paused_or_being_deleted() -> None:
    assert scale_of(manifest({"min": 1})) is None
    assert scale_of(manifest({"max": 4}, annotations={PAUSED_ANNOTATION: "true"})) is None
    assert scale_of(manifest({"max": 4}, deletionTimestamp="2026-01-01T00:00:00Z")) is None


def test_a_deployment_is_scaled_no_more_without_autoscaling() -> None:
    scales = Scales()
    scales.put(KEY, manifest({"max": 4}))
    assert scales.by_key.keys() == {KEY}
    scales.put(KEY, manifest(None))
    assert not scales.by_key


def failed(since: str | None, failed_at: str) -> Scale:
    """Return the scale of a deployment whose third start failed."""
    failure = {"time": failed_at, "reason": "Loading", "message": "", "count": 3, "specHash": "a"}
    given = manifest({"max": 4})
    given["status"] |= {"startingSince": since, "failedStart": failure}
    found = scale_of(given)
    assert found is not None
    return found


def test_a_start_has_failed_until_the_next_one() -> None:
    assert failed("2026-01-01T12:00:00Z", "2026-01-01T12:30:00Z").has_failed_start
    assert not failed("2026-01-01T13:00:00Z", "2026-01-01T12:30:00Z").has_failed_start
    assert not failed(None, "2026-01-01T12:30:00Z").has_failed_start


def test_the_pause_after_a_failed_start_grows_with_their_number() -> None:
    assert failed(None, "1970-01-01T00:10:00Z").paused_until == 600 + 8 * 60
