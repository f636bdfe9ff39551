"""The condition ModelCached without a cluster."""

from typing import Any

import pytest
from llm_operator.api.spec import parse
from llm_operator.observed import Fetch, Observed, Warned, workload_key
from llm_operator.status.model_cache import model_cached


def verdict(manifest: Any, cache: dict[str, Any], **observed: Any) -> Any:
    subject = manifest(model={"uri": "a/b", "cache": cache})
    return model_cached(parse(subject).spec, Observed(subject=subject, **observed))


def pod(node: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": node}, "spec": {"nodeName": node}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("done", "total", "message"),
    [
        (0, 0, "the download starts"),
        (2_500, 0, "2.5 kB are downloaded"),
        (0, 10**9, "0 %: 0 bytes of 1.0 GB are downloaded"),
        (999_999_999, 10**9, "99 %: 1000.0 MB of 1.0 GB are downloaded"),
        (2 * 10**9, 10**9, "100 %: 2.0 GB of 1.0 GB are downloaded"),
    ],
)
def test_reports_percent_and_bytes(manifest: Any, done: int, total: int, message: str) -> None:
    found = verdict(manifest, {"size": "1Gi"}, fetch=Fetch(done=done, total=total))

    assert (found.holds, found.reason, found.message) == (False, "FetchingModel", message)


def test_reports_the_end_of_the_download_before_its_job_is_complete(manifest: Any) -> None:
    found = verdict(manifest, {"size": "1Gi"}, fetch=Fetch(pods=(pod("node1", "Succeeded"),)))
    assert found.message == "the download has ended"


def test_a_model_without_a_cache_has_no_condition(manifest: Any) -> None:
    assert model_cached(parse(manifest()).spec, Observed(subject=manifest())) is None


@pytest.mark.parametrize(
    ("mode", "pods", "is_wrong"),
    [
        ("ReadWriteOnce", (pod("a"), pod("b", "Pending")), True),
        ("ReadWriteOnce", (pod("a"), pod("a", "Pending")), False),
        ("ReadWriteOnce", (pod("a"), pod("b")), False),
        ("ReadWriteMany", (pod("a"), pod("b", "Pending")), False),
    ],
)
def test_names_an_access_mode_that_keeps_replicas_from_other_nodes(
    manifest: Any, mode: str, pods: Any, is_wrong: bool
) -> None:
    found = verdict(manifest, {"size": "1Gi", "accessMode": mode}, pods=pods)

    assert (found.reason == "WrongAccessMode") is is_wrong
    if is_wrong:
        assert "replicas are on a, b" in found.message


def test_a_volume_on_another_node_passes_and_an_access_mode_does_not(manifest: Any) -> None:
    warnings = [
        Warned("FailedAttachVolume", "Multi-Attach error for volume v"),
        Warned("ProvisioningFailed", "unsupported access mode"),
    ]

    attached, refused = (
        verdict(manifest, {"size": "1Gi"}, fetch=Fetch(warnings=(warning,))) for warning in warnings
    )

    assert (attached.reason, refused.reason) == ("VolumeInUse", "WrongAccessMode")
    assert "podTemplate.spec.nodeSelector" in attached.message


def test_the_users_claim_is_named_when_it_is_full(manifest: Any) -> None:
    ended = {"exitCode": 1, "message": "cannot be written to /models/x: No space left on device"}
    status = {"name": "model", "state": {"terminated": ended}, "ready": False}
    full = {"metadata": {"name": "p"}, "spec": {}, "status": {"containerStatuses": [status]}}

    found = verdict(manifest, {"claim": "mine"}, fetch=Fetch(pods=(full,)))

    assert (found.reason, found.message) == (
        "VolumeFull",
        "the volume of the claim mine is full: enlarge the claim",
    )


def test_a_record_of_another_cache_does_not_count(manifest: Any) -> None:
    annotations = {"fairlead.dev/cached-model": "model-other"}
    workload = {workload_key("smollm2"): {"metadata": {"annotations": annotations}}}

    found = verdict(manifest, {"claim": "mine"}, children=workload)

    assert found.holds is False
