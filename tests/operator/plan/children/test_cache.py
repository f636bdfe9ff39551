"""The claim and the download Job of a model's cache."""

from typing import Any

import pytest
from llm_operator.api.schema import SpecError
from llm_operator.observed import ChildKey, Observed, claim_key, fetch_key, workload_key
from llm_operator.settings import PodPolicy, Settings

CREATED = {"uri": "hf://org/name", "cache": {"size": "10Gi"}}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def owned_by(uid: str, manifest: dict[str, Any], name: str = "smollm2") -> dict[str, Any]:
    """Return a manifest of an LLMDeployment with a UID."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": name, "uid": uid}}


def shared(goal: Any, kind: str) -> dict[str, Any] | None:
    return next((child for key, child in goal.goal.apply.items() if key.kind == kind), None)


def after(goal: Any, **statuses: dict[str, Any]) -> dict[ChildKey, dict[str, Any]]:
    """Return the children of a plan as they exist afterwards, with statuses by kind."""
    return {key: {**child, "status": statuses.get(key.kind, {})} for key, child in goal.goal.apply.items()}


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return a shared child that two LLMDeployments have applied."""
    references = [*first["metadata"]["ownerReferences"], *second["metadata"]["ownerReferences"]]
    return {**first, "metadata": {**first["metadata"], "ownerReferences": references}}


def with_uid(uid: str, child: dict[str, Any]) -> dict[str, Any]:
    """Return a child as the API server has created it."""
    return {**child, "metadata": {**child["metadata"], "uid": uid}}


def claim_of(goal: Any) -> tuple[ChildKey, dict[str, str]]:
    """Return the key of the planned claim, and its annotations."""
    key = next(key for key in goal.goal.apply if key.kind == "PersistentVolumeClaim")
    return key, goal.goal.apply[key]["metadata"].get("annotations", {})


def test_a_claim_and_a_job_come_before_the_deployment(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(model=CREATED, resources={"gpu": 1, "memory": "16Gi"}))

    claim, job = shared(goal, "PersistentVolumeClaim"), shared(goal, "Job")
    assert claim is not None and job is not None
    assert shared(goal, "Deployment") is None
    name = claim["metadata"]["name"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "10Gi"}},
    }
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["fetch", "hf://org/name", "--to", f"/models/{name}", "--progress-port=8000"]
    assert container["resources"]["requests"] == {"memory": "512Mi"}
    assert {"name": "models", "persistentVolumeClaim": {"claimName": name}} in pod["volumes"]
    assert pod["securityContext"]["fsGroup"] == 65532
    assert goal.goal.requeue_after


def test_the_deployment_follows_the_finished_job_and_mounts_its_folder(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(model=CREATED))

    done = planned(manifest(model=CREATED), Observed(children=after(goal, Job=COMPLETE)))

    (volume,) = (volume for volume in done.pod["volumes"] if volume["name"] == "models")
    (mount,) = (mount for mount in done.engine["volumeMounts"] if mount["name"] == "models")
    name = volume["persistentVolumeClaim"]["claimName"]
    assert mount == {"name": "models", "mountPath": "/models/model", "subPath": name, "readOnly": True}
    assert "initContainers" not in done.pod
    assert done.pod["securityContext"]["fsGroup"] == 65532
    assert done.goal.requeue_after is None
    assert done.goal.release == (fetch_key(name),)


def test_a_deleted_job_is_not_run_again(planned: Any, manifest: Any) -> None:
    first = planned(manifest(model=CREATED))
    done = planned(manifest(model=CREATED), Observed(children=after(first, Job=COMPLETE)))

    later = planned(manifest(model=CREATED, replicas=3), Observed(children=after(done)))

    assert shared(later, "Job") is None
    assert later.child("Deployment")["spec"]["replicas"] == 3


def test_a_claim_that_was_created_anew_is_filled_again(planned: Any, manifest: Any) -> None:
    first = planned(manifest(model=CREATED))
    done = planned(manifest(model=CREATED), Observed(children=after(first, Job=COMPLETE)))
    children = after(done)
    key = next(key for key in children if key.kind == "PersistentVolumeClaim")
    children[key] = {**children[key], "metadata": {**children[key]["metadata"], "uid": "another"}}

    again = planned(manifest(model=CREATED), Observed(children=children))

    assert shared(again, "Job") is not None
    assert again.child("Deployment")["spec"]["template"] == done.template


def test_a_claim_that_was_created_anew_is_filled_for_a_spec_that_is_refused_by_now(
    planned: Any, manifest: Any
) -> None:
    given = manifest(model=CREATED, engine={"env": [{"name": "FAIRLEAD_ADMIN_KEY", "value": "mine"}]})
    first = planned(given)
    done = planned(given, Observed(children=after(first, Job=COMPLETE)))
    claim, _ = claim_of(done)
    children = after(done)
    children[claim] = with_uid("another", children[claim])
    refusing = Settings(engine_image="engine:1", engine_keys=True)

    again = planned(given, Observed(children=children), refusing)

    assert shared(again, "Job") is not None
    assert again.template == done.template
    with pytest.raises(SpecError):
        planned(given, settings=refusing)


def test_a_later_deployment_uses_a_complete_claim_without_a_job(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    created = {key: with_uid("claim-1", child) for key, child in after(first, Job=COMPLETE).items()}
    done = planned(owned_by("a", manifest(model=CREATED), "first"), Observed(children=created))
    claim, record = claim_of(done)
    assert record == {"fairlead.dev/cached-model": f"{claim.name}/claim-1"}
    # The Job and the Deployment of the first one are not among the children of the second.
    complete = with_uid("claim-1", done.goal.apply[claim])

    later = planned(owned_by("b", manifest(model=CREATED), "later"), Observed(children={claim: complete}))

    assert shared(later, "Job") is None
    assert later.child("Deployment")["spec"]["template"]
    assert claim_of(later) == (claim, record)


@pytest.mark.parametrize("record", ["", "model-0/claim-1", "{name}/another-claim"])
def test_a_claim_without_a_record_of_its_own_is_filled(planned: Any, manifest: Any, record: str) -> None:
    goal = planned(owned_by("a", manifest(model=CREATED)))
    claim, _ = claim_of(goal)
    existing = with_uid("claim-1", goal.goal.apply[claim])
    # A backup that is restored, or a claim that is created anew, has another UID.
    existing["metadata"]["annotations"] = {"fairlead.dev/cached-model": record.format(name=claim.name)}

    filled = planned(owned_by("b", manifest(model=CREATED), "later"), Observed(children={claim: existing}))

    assert shared(filled, "Job") is not None
    assert shared(filled, "Deployment") is None


def test_the_record_of_an_earlier_claim_is_kept_for_a_revert(planned: Any, manifest: Any) -> None:
    first = planned(manifest(model=CREATED))
    created = {key: with_uid("claim-1", child) for key, child in after(first, Job=COMPLETE).items()}
    serving = planned(manifest(model=CREATED), Observed(children=created))
    claim, record = claim_of(serving)
    children = {key: with_uid("claim-1", child) for key, child in after(serving).items()}

    changed = planned(manifest(model=CREATED | {"uri": "hf://org/other"}), Observed(children=children))

    assert changed.goal.apply[claim]["metadata"]["annotations"] == record


def test_a_claim_of_the_user_is_neither_planned_nor_deleted(planned: Any, manifest: Any) -> None:
    model = {"uri": "hf://org/name", "cache": {"claim": "mine"}}
    goal = planned(manifest(model=model))

    done = planned(manifest(model=model), Observed(children=after(goal, Job=COMPLETE)))

    assert shared(goal, "PersistentVolumeClaim") is None
    (volume,) = (volume for volume in done.pod["volumes"] if volume["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "mine"}
    assert [key.kind for key in done.goal.release] == ["Job"]


def test_the_old_model_is_served_while_the_new_one_is_downloaded(planned: Any, manifest: Any) -> None:
    first = planned(manifest(model=CREATED))
    serving = planned(manifest(model=CREATED), Observed(children=after(first, Job=COMPLETE)))
    other = {**CREATED, "uri": "hf://org/other"}
    children = {key: child for key, child in after(serving).items() if key.kind != "Job"}

    changed = planned(manifest(model=other, replicas=2), Observed(children=children))

    assert changed.template == serving.template
    assert changed.child("Deployment")["spec"]["replicas"] == 2
    claims = [key for key in changed.goal.apply if key.kind == "PersistentVolumeClaim"]
    assert len(claims) == 2 and not changed.goal.delete + changed.goal.release


def test_a_deployment_without_a_readable_record_is_kept_while_a_new_model_is_downloaded(
    planned: Any, manifest: Any
) -> None:
    first = planned(manifest(model=CREATED))
    serving = planned(manifest(model=CREATED), Observed(children=after(first, Job=COMPLETE)))
    children = after(serving)
    key = workload_key("smollm2")
    children[key] = {**children[key], "metadata": {**children[key]["metadata"], "annotations": {}}}

    changed = planned(manifest(model={**CREATED, "uri": "hf://org/other"}), Observed(children=children))

    assert changed.template == serving.template


def test_the_old_claim_is_released_after_the_rollout(planned: Any, manifest: Any) -> None:
    first = planned(manifest(model=CREATED))
    serving = planned(manifest(model=CREATED), Observed(children=after(first, Job=COMPLETE)))
    (old,) = (key for key in serving.goal.apply if key.kind == "PersistentVolumeClaim")
    other = manifest(model={**CREATED, "uri": "hf://org/other"})
    fetching = planned(other, Observed(children=after(serving)))
    rolling = planned(other, Observed(children=after(fetching, Job=COMPLETE)))

    in_rollout = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 1}
    during = planned(other, Observed(children=after(rolling, Deployment=in_rollout)))
    settled = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    afterwards = planned(other, Observed(children=after(during, Deployment=settled)))

    assert rolling.template != serving.template
    assert old in during.goal.apply
    assert afterwards.goal.release == (old,)


def test_deployments_with_the_same_cache_share_claim_and_job(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    second = planned(owned_by("b", manifest(model=CREATED), "second"))

    for kind in ("PersistentVolumeClaim", "Job"):
        one, other = shared(first, kind), shared(second, kind)
        assert one is not None and other is not None
        assert one["metadata"]["name"] == other["metadata"]["name"]
        assert one["metadata"]["labels"] == other["metadata"]["labels"]
        assert [reference["uid"] for reference in one["metadata"]["ownerReferences"]] == ["a"]
        assert "controller" not in one["metadata"]["ownerReferences"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "hf://org/name@v2"},
        {"secretRef": {"name": "token"}},
        {"cache": {"size": "10Gi", "class": "fast"}},
        {"cache": {"size": "10Gi", "accessMode": "ReadWriteOnce"}},
        {"cache": {"claim": "mine"}},
    ],
)
def test_another_revision_secret_or_volume_is_another_cache(
    planned: Any, manifest: Any, change: dict[str, Any]
) -> None:
    one, other = planned(manifest(model=CREATED)), planned(manifest(model=CREATED | change))

    assert shared(one, "Job")["metadata"]["name"] != shared(other, "Job")["metadata"]["name"]  # type: ignore[index]


def test_a_second_deployment_keeps_the_template_of_the_running_job(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    children = after(first)

    second = planned(
        owned_by("b", manifest(model=CREATED, engine={"image": "other:2"}), "second"),
        Observed(children=children),
    )

    job, kept = shared(first, "Job"), shared(second, "Job")
    assert job is not None and kept is not None
    assert kept["spec"] == job["spec"]
    assert kept["metadata"]["annotations"] == job["metadata"]["annotations"]
    assert [reference["uid"] for reference in kept["metadata"]["ownerReferences"]] == ["b"]


def test_a_job_is_replaced_when_its_own_deployment_changes(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy"}]

    changed = planned(
        owned_by("a", manifest(model=CREATED, engine={"env": env}), "first"), Observed(children=after(first))
    )

    assert shared(changed, "Job") is None
    assert [key.kind for key in changed.goal.delete] == ["Job"]


def test_a_new_release_of_the_operator_does_not_restart_a_download(planned: Any, manifest: Any) -> None:
    given = owned_by("a", manifest(model=CREATED))
    first = planned(given)
    next_release = Settings(engine_image="engine:2", version="9.9.9")

    upgraded = planned(given, Observed(children=after(first)), next_release)

    job, kept = shared(first, "Job"), shared(upgraded, "Job")
    assert job is not None and kept is not None
    assert kept["spec"] == job["spec"]
    assert not upgraded.goal.delete


def test_an_abandoned_job_is_replaced_by_a_deployment_that_needs_another_template(
    planned: Any, manifest: Any
) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    second = planned(owned_by("b", manifest(model=CREATED), "second"), Observed(children=after(first)))

    alone = planned(owned_by("b", manifest(model=CREATED), "second"), Observed(children=after(second)))

    # Its pods would run with the service account of the first deployment, which is gone.
    assert [key.kind for key in alone.goal.delete] == ["Job"]


def test_prune_removes_only_its_own_reference_while_others_use_the_cache(planned: Any, manifest: Any) -> None:
    first = planned(owned_by("a", manifest(model=CREATED), "first"))
    second = planned(owned_by("b", manifest(model=CREATED), "second"))
    both = {
        key: joined(child, second.goal.apply[key])
        for key, child in first.goal.apply.items()
        if key.kind == "PersistentVolumeClaim"
    }
    (claim,) = both

    left = planned(owned_by("a", manifest(), "first"), Observed(children=both))

    assert (left.goal.release, left.goal.delete) == ((claim,), ())


def test_a_claim_that_is_being_deleted_is_awaited(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(model=CREATED))
    children = after(goal)
    key = next(key for key in children if key.kind == "PersistentVolumeClaim")
    ending = {**children[key]["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}

    waiting = planned(
        manifest(model=CREATED), Observed(children={key: {**children[key], "metadata": ending}})
    )

    assert claim_key(key.name) not in waiting.goal.apply
    assert workload_key("smollm2") not in waiting.goal.apply
    assert waiting.goal.requeue_after


@pytest.mark.parametrize(("wanted", "planned_size"), [("20Gi", "20Gi"), ("5Gi", "10Gi"), ("10240Mi", "10Gi")])
def test_the_size_of_a_claim_only_grows(planned: Any, manifest: Any, wanted: str, planned_size: str) -> None:
    goal = planned(manifest(model=CREATED))

    changed = planned(manifest(model=CREATED | {"cache": {"size": wanted}}), Observed(children=after(goal)))

    claim = shared(changed, "PersistentVolumeClaim")
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == planned_size


def test_the_job_is_placed_as_the_engines_are_and_runs_none_of_their_other_containers(
    planned: Any, manifest: Any
) -> None:
    pod_template = {
        "spec": {
            "nodeSelector": {"zone": "a"},
            "securityContext": {"fsGroup": None},
            "imagePullSecrets": [{"name": "registry"}],
            "containers": [{"name": "sidecar", "image": "sidecar:1", "securityContext": CONFINED}],
        }
    }

    goal = planned(manifest(model=CREATED, podTemplate=pod_template))

    job = shared(goal, "Job")
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert "fsGroup" not in pod["securityContext"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert [container["name"] for container in pod["containers"]] == ["model"]
    assert pod["restartPolicy"] == "OnFailure"


def test_the_job_runs_the_operators_image_and_nothing_of_the_tenants(planned: Any, manifest: Any) -> None:
    engine = {
        "image": "stranger:1",
        "env": [{"name": "HF_ENDPOINT", "value": "http://stranger"}],
        "envFrom": [{"configMapRef": {"name": "stranger"}}],
        "files": [{"path": "/usr/lib/python3/sitecustomize.py", "content": "import stranger"}],
    }
    pod_template = {
        "spec": {
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["huggingface.co"]}],
            "dnsConfig": {"nameservers": ["10.0.0.1"]},
            "volumes": [{"name": "stranger", "configMap": {"name": "stranger"}}],
            "initContainers": [
                {
                    "name": "model",
                    "image": "stranger:2",
                    "command": ["sh"],
                    "env": [{"name": "PYTHONPATH", "value": "/stranger"}],
                    "volumeMounts": [{"name": "stranger", "mountPath": "/stranger"}],
                }
            ],
        }
    }
    model = CREATED | {"secretRef": {"name": "token"}}

    given, plain = (
        planned(manifest(model=model, **spec))
        for spec in ({"engine": engine, "podTemplate": pod_template}, {})
    )

    assert shared(given, "Job") == shared(plain, "Job")
    (container,) = shared(given, "Job")["spec"]["template"]["spec"]["containers"]  # type: ignore[index]
    assert container["image"] == "engine:1"
    secret = {"secretKeyRef": {"name": "token", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in container["env"]


def test_the_job_has_the_environment_of_the_administrators_profile(planned: Any, manifest: Any) -> None:
    mirror = {"name": "HF_ENDPOINT", "value": "https://mirror"}
    profile = {"podTemplate": {"spec": {"initContainers": [{"name": "model", "env": [mirror]}]}}}
    settings = Settings(engine_image="engine:1", profiles={"mirrored": profile})

    goal = planned(manifest(model=CREATED, profile="mirrored"), settings=settings)

    (container,) = shared(goal, "Job")["spec"]["template"]["spec"]["containers"]  # type: ignore[index]
    assert mirror in container["env"]
    done = planned(
        manifest(model=CREATED, profile="mirrored"), Observed(children=after(goal, Job=COMPLETE)), settings
    )
    assert "initContainers" not in done.pod


@pytest.mark.parametrize("model", [CREATED, {"uri": "pvc://claim/x"}])
def test_a_required_profile_may_configure_the_container_that_fetches(
    planned: Any, manifest: Any, model: Any
) -> None:
    mirror = {"name": "HF_ENDPOINT", "value": "https://mirror"}
    profile = {"podTemplate": {"spec": {"initContainers": [{"name": "model", "env": [mirror]}]}}}
    policy = PodPolicy(required_profiles={"default": ("mirrored",)})
    settings = Settings(engine_image="engine:1", profiles={"mirrored": profile}, pod_policy=policy)

    assert planned(manifest(model=model, profile="mirrored"), settings=settings)


def test_the_job_keeps_variables_and_resources_that_choose_no_source(planned: Any, manifest: Any) -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy"}, {"name": "AWS_SKIP_SIGNATURE", "value": "true"}]
    limits = {"limits": {"cpu": "2"}}
    pod_template = {"spec": {"initContainers": [{"name": "model", "resources": limits}]}}

    goal = planned(manifest(model=CREATED, engine={"env": env}, podTemplate=pod_template))

    (container,) = shared(goal, "Job")["spec"]["template"]["spec"]["containers"]  # type: ignore[index]
    assert [variable for variable in container["env"] if variable in env] == env
    assert container["resources"]["limits"]["cpu"] == "2"


def test_a_pod_template_that_is_refused_is_refused_before_the_download(planned: Any, manifest: Any) -> None:
    pod_template = {"spec": {"containers": [{"name": "sidecar", "image": "sidecar:1"}]}}

    with pytest.raises(SpecError, match="restricted"):
        planned(manifest(model=CREATED, podTemplate=pod_template))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"uri": "pvc://claim/x", "cache": {"size": "1Gi"}}, "cache is for a model that is fetched"),
        ({"uri": "/opt/x", "cache": {"size": "1Gi"}}, "cache is for a model that is fetched"),
        ({"uri": "a/b", "cache": {}}, "either a claim"),
        ({"uri": "a/b", "cache": {"claim": "c", "size": "1Gi"}}, "either a claim"),
        ({"uri": "a/b", "cache": {"claim": "c", "class": "fast"}}, "they need a size"),
        ({"uri": "a/b", "cache": {"size": "lots"}}, "spec.model.cache.size"),
        ({"uri": "a/b", "cache": {"size": "1Gi", "accessMode": "ReadOnlyMany"}}, "ReadWriteMany"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_with_a_reason(
    planned: Any, manifest: Any, model: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        planned(manifest(model=model))
