"""The Job that downloads a model: what it has of an LLMDeployment, and what starts it again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from llm_operator.api.schema import SpecError
from llm_operator.observed import ChildKey, Observed
from llm_operator.settings import Settings

CREATED = {"uri": "hf://org/name", "cache": {"size": "10Gi"}}


def owned_by(uid: str, manifest: dict[str, Any], name: str = "smollm2") -> dict[str, Any]:
    """Return a manifest of an LLMDeployment with a UID."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": name, "uid": uid}}


def after(goal: Any) -> dict[ChildKey, dict[str, Any]]:
    """Return the children of a plan as they exist afterwards."""
    return dict(goal.goal.apply)


def test_another_number_of_gpus_does_not_restart_a_download(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED, resources={"gpu": 1})))

    changed = planned(
        owned_by("a", manifest(model=CREATED, resources={"gpu": 2})), Observed(children=after(first))
    )

    assert changed.child("Job") == first.child("Job")


def test_a_download_takes_a_profile_that_was_corrected(planned: Any, manifest: Any) -> None:
    given = owned_by("a", manifest(model=CREATED, profile="mirrored"))

    def settings(proxy: str) -> Settings:
        env = [{"name": "HTTPS_PROXY", "value": proxy}]
        profile = {"podTemplate": {"spec": {"initContainers": [{"name": "model", "env": env}]}}}
        return Settings(engine_image="engine:1", profiles={"mirrored": profile})

    first = planned(given, settings=settings("http://wrong"))
    same = planned(given, Observed(children=after(first)), settings("http://wrong"))
    corrected = planned(given, Observed(children=after(first)), settings("http://right"))

    assert same.child("Job") == first.child("Job") and not same.goal.delete
    assert [key.kind for key in corrected.goal.delete] == ["Job"]


def test_the_pods_of_the_job_have_the_users_labels_and_annotations_and_not_the_engines(
    planned: Any, manifest: Any
) -> None:
    metadata = {
        "annotations": {"sidecar.istio.io/inject": "false"},
        "labels": {
            "team": "a",
            "fairlead.dev/llmdeployment": "smollm2",
            "app.kubernetes.io/name": "fairlead-engine",
        },
    }

    goal = planned(manifest(model=CREATED, podTemplate={"metadata": metadata}))

    job = goal.child("Job")["spec"]["template"]["metadata"]
    assert job["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert job["labels"] == {
        "team": "a",
        "app.kubernetes.io/name": "fairlead-fetch",
        "app.kubernetes.io/component": "fetch",
        "app.kubernetes.io/managed-by": "fairlead",
        "fairlead.dev/model-cache": goal.child("Job")["metadata"]["name"],
    }


def test_the_job_claims_no_devices(planned: Any, manifest: Any) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    used = {"claims": [{"name": "gpu"}]}
    pod = {"resourceClaims": claims, "containers": [{"name": "engine", "resources": used}]}
    profile = {"podTemplate": {"spec": pod | {"initContainers": [{"name": "model", "resources": used}]}}}
    settings = Settings(engine_image="engine:1", profiles={"dra": profile})

    job = planned(manifest(model=CREATED, profile="dra"), settings=settings).child("Job")

    pod = job["spec"]["template"]["spec"]
    assert "resourceClaims" not in pod
    assert "claims" not in pod["containers"][0]["resources"]


def test_a_download_that_does_not_run_is_looked_at_less_and_less_often(planned: Any, manifest: Any) -> None:
    given = manifest(model=CREATED)
    children = after(planned(given))
    created = datetime(2026, 1, 1, tzinfo=UTC)

    def poll(seconds: int, **status: int) -> float | None:
        (key,) = (key for key in children if key.kind == "Job")
        metadata = children[key]["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}
        job = {**children[key], "metadata": metadata, "status": status}
        now = created + timedelta(seconds=seconds)
        return planned(given, Observed(children={**children, key: job}, now=now)).goal.requeue_after

    assert [poll(seconds) for seconds in (0, 10, 100, 86400)] == [2, 2, 10, 60]
    assert poll(86400, active=1, ready=0) == 60
    assert poll(86400, active=1, ready=1) == 2


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        ({"initContainers": None}, "initContainers: the container model"),
        (
            {"initContainers": [{"name": "model", "volumeMounts": None}]},
            "the volume models must be at /models",
        ),
        ({"volumes": None}, "there is no volume tmp"),
    ],
)
def test_a_profile_without_what_the_download_needs_is_refused(
    planned: Any, manifest: Any, pod: dict[str, Any], problem: str
) -> None:
    profiles = {"own": {"podTemplate": {"spec": pod}}}

    with pytest.raises(SpecError, match=problem):
        planned(
            manifest(model=CREATED, profile="own"), settings=Settings(engine_image="e", profiles=profiles)
        )


def test_a_container_that_fetches_and_breaks_the_pods_standard_is_refused_before_the_download(
    planned: Any, manifest: Any
) -> None:
    overlay = {"initContainers": [{"name": "model", "securityContext": {"privileged": True}}]}

    with pytest.raises(SpecError, match=r"initContainers\[model\]\.securityContext\.privileged"):
        planned(manifest(model=CREATED, podTemplate={"spec": overlay}))
