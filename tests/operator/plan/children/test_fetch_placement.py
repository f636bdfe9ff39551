"""Where the Job that downloads a model runs: where engines can run, and beside the replica that it replaces."""

from typing import Any

import pytest
from llm_operator.observed import ChildKey, Observed
from llm_operator.settings import Settings

CREATED = {"uri": "hf://org/name", "cache": {"size": "10Gi"}}
OWN = {"uri": "hf://org/name", "cache": {"claim": "mine"}}
GPU = "nvidia.com/gpu"
HOSTNAME = "kubernetes.io/hostname"
BOUND = {"status": {"phase": "Bound"}}
SELECTED = {"volume.kubernetes.io/selected-node": "node1"}


def pod_of(goal: Any) -> dict[str, Any]:
    spec: dict[str, Any] = goal.child("Job")["spec"]["template"]["spec"]
    return spec


def resources_of(goal: Any) -> dict[str, Any]:
    (container,) = pod_of(goal)["containers"]
    return dict(container["resources"])


def owned(manifest: dict[str, Any]) -> dict[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], "uid": "a"}}


def after(goal: Any, claim: dict[str, Any] | None = None, job: Any = None) -> dict[ChildKey, dict[str, Any]]:
    """Return the children of a plan as they exist afterwards, with the state of the claim and of the Job."""
    states = {"PersistentVolumeClaim": claim or {}, "Job": {"status": job or {}}}
    children = {}
    for key, child in goal.goal.apply.items():
        state = states.get(key.kind, {})
        annotations = child["metadata"].get("annotations", {}) | state.get("annotations", {})
        children[key] = {
            **child,
            "metadata": child["metadata"] | {"annotations": annotations},
            "status": state.get("status", {}),
        }
    return children


def test_the_download_asks_for_little_however_much_an_engine_does(planned: Any, manifest: Any) -> None:
    asked = {"cpu": "32", "memory": "128Gi", "disk": "200Gi"}

    resources = resources_of(planned(manifest(model=CREATED, resources=asked)))

    assert resources["requests"] == {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "1Gi"}
    # What it may use is as much as ever.
    assert resources["limits"] == {"memory": "128Gi", "ephemeral-storage": "200Gi"}


def test_the_download_asks_for_no_more_than_an_engine_and_for_what_a_pod_template_says(
    planned: Any, manifest: Any
) -> None:
    small = planned(manifest(model=CREATED, resources={"cpu": "50m", "memory": "256Mi"}))
    explicit = {"resources": {"requests": {"cpu": "2"}}}
    template = {"spec": {"initContainers": [{"name": "model", **explicit}]}}
    chosen = planned(manifest(model=CREATED, resources={"cpu": 8}, podTemplate=template))

    assert resources_of(small)["requests"] == {"cpu": "50m", "memory": "256Mi"}
    assert resources_of(chosen)["requests"] == {"cpu": "2"}
    assert resources_of(planned(manifest(model=CREATED))) == {}


def test_while_its_claim_has_no_volume_the_download_asks_for_the_engines_gpus(
    planned: Any, manifest: Any
) -> None:
    given = manifest(model=CREATED, resources={"gpu": 4})
    first = planned(given)

    bound = planned(given, Observed(children=without_job(after(first, BOUND))))

    assert resources_of(first)["limits"] == {GPU: "4"}
    assert GPU not in resources_of(bound).get("limits", {})


def test_gpus_of_a_profile_and_of_another_vendor_are_asked_for(planned: Any, manifest: Any) -> None:
    profile = {"resources": {"gpu": 2, "gpuResource": "example.com/gpu"}}
    settings = Settings(engine_image="engine:1", profiles={"large": profile})

    goal = planned(manifest(model=CREATED, profile="large"), settings=settings)

    assert resources_of(goal)["limits"] == {"example.com/gpu": "2"}


def test_while_a_replica_runs_a_download_asks_for_no_gpu(planned: Any, manifest: Any) -> None:
    replica = {"metadata": {"name": "p"}, "spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}
    given = manifest(model=CREATED, resources={"gpu": 1})

    beside = planned(given, Observed(pods=(replica,)))
    unscheduled = planned(given, Observed(pods=({**replica, "spec": {}},)))

    assert GPU not in resources_of(beside).get("limits", {})
    assert resources_of(unscheduled)["limits"] == {GPU: "1"}


@pytest.mark.parametrize(
    ("claim", "gpus"), [({"status": {"phase": "Pending"}}, "1"), (BOUND, None), (None, None)]
)
def test_a_claim_of_the_users_counts_as_it_was_read(
    planned: Any, manifest: Any, claim: dict[str, Any] | None, gpus: str | None
) -> None:
    read = {} if claim is None else {"mine": claim}

    goal = planned(manifest(model=OWN, resources={"gpu": 1}), Observed(claims=read))

    assert resources_of(goal).get("limits", {}).get(GPU) == gpus


def without_job(children: dict[ChildKey, dict[str, Any]]) -> dict[ChildKey, dict[str, Any]]:
    return {key: child for key, child in children.items() if key.kind != "Job"}


def test_a_download_that_waits_for_gpus_is_made_anew_when_their_number_changes(
    planned: Any, manifest: Any
) -> None:
    first = planned(owned(manifest(model=CREATED, resources={"gpu": 8})))

    changed = planned(
        owned(manifest(model=CREATED, resources={"gpu": 1})),
        Observed(children=after(first, job={"ready": 0})),
    )

    assert [key.kind for key in changed.goal.delete] == ["Job"]


@pytest.mark.parametrize(
    ("claim", "job", "is_made_anew"),
    [
        # Of a class that binds at once, or of a volume that was there: its pod may need no GPU to run.
        (BOUND, {"ready": 0}, True),
        (BOUND, {"ready": 1}, False),
        # The scheduler has chosen a node for it.
        (BOUND | {"annotations": SELECTED}, {"ready": 0}, False),
        ({"annotations": SELECTED}, {"ready": 0}, False),
    ],
)
def test_a_download_keeps_its_gpus_where_it_has_a_node(
    planned: Any, manifest: Any, claim: dict[str, Any], job: dict[str, Any], is_made_anew: bool
) -> None:
    given = owned(manifest(model=CREATED, resources={"gpu": 1}))
    first = planned(given)

    later = planned(given, Observed(children=after(first, claim, job)))

    assert [key.kind for key in later.goal.delete] == ["Job"] * is_made_anew


def test_a_running_download_of_an_earlier_release_goes_on(planned: Any, manifest: Any) -> None:
    given = owned(
        manifest(
            model=CREATED, resources={"gpu": 1, "cpu": 8}, podTemplate={"spec": {"runtimeClassName": "x"}}
        )
    )
    children = after(planned(given), BOUND, {"ready": 1})
    (key,) = (key for key in children if key.kind == "Job")
    children[key]["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8"}}

    upgraded = planned(given, Observed(children=children))

    assert not upgraded.goal.delete
    assert upgraded.child("Job")["spec"] == children[key]["spec"]


def term(**selector: Any) -> dict[str, Any]:
    return {"topologyKey": HOSTNAME, "labelSelector": selector}


ENGINES = term(matchLabels={"fairlead.dev/llmdeployment": "smollm2"})


@pytest.mark.parametrize(
    "selecting",
    [
        ENGINES,
        term(
            matchExpressions=[{"key": "fairlead.dev/llmdeployment", "operator": "In", "values": ["smollm2"]}]
        ),
        term(matchExpressions=[{"key": "fairlead.dev/llmdeployment", "operator": "Exists"}]),
        ENGINES | {"namespaces": ["default"]},
        ENGINES | {"namespaceSelector": {}},
    ],
)
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_terms_that_select_engines_are_left_out(
    planned: Any, manifest: Any, selecting: dict[str, Any], kind: str
) -> None:
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    affinity = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [selecting],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": selecting}],
        },
        "nodeAffinity": node,
    }

    goal = planned(manifest(model=CREATED, podTemplate={"spec": {"affinity": affinity}}))

    assert pod_of(goal)["affinity"] == {"nodeAffinity": node}


@pytest.mark.parametrize(
    "other",
    [
        term(matchLabels={"app": "database"}),
        term(matchLabels={"fairlead.dev/llmdeployment": "another"}),
        term(matchExpressions=[{"key": "fairlead.dev/llmdeployment", "operator": "DoesNotExist"}]),
        term(
            matchExpressions=[
                {"key": "fairlead.dev/llmdeployment", "operator": "NotIn", "values": ["smollm2"]}
            ]
        ),
        ENGINES | {"namespaces": ["elsewhere"]},
        {"topologyKey": HOSTNAME},
        # The API server refuses these.
        {"topologyKey": HOSTNAME, "labelSelector": "smollm2"},
        "smollm2",
    ],
)
def test_other_terms_stay(planned: Any, manifest: Any, other: Any) -> None:
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other]}}

    goal = planned(manifest(model=CREATED, podTemplate={"spec": {"affinity": affinity}}))

    assert pod_of(goal)["affinity"] == affinity


def test_a_term_that_selects_the_download_too_keeps_it_beside_the_engines(
    planned: Any, manifest: Any
) -> None:
    mine = term(matchLabels={"app": "mine"})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {required: [mine]}, "podAntiAffinity": {required: [mine]}}
    template = {"metadata": {"labels": {"app": "mine"}}, "spec": {"affinity": affinity}}

    goal = planned(manifest(model=CREATED, podTemplate=template))

    assert pod_of(goal)["affinity"] == {"podAffinity": {required: [mine]}}


def test_a_runtime_class_is_the_administrators_unless_a_gpu_is_asked_for(planned: Any, manifest: Any) -> None:
    profiles = {"sandboxed": {"podTemplate": {"spec": {"runtimeClassName": "kata"}}}}
    settings = Settings(engine_image="engine:1", profiles=profiles)
    template = {"spec": {"runtimeClassName": "nvidia"}}
    on_gpus = manifest(model=CREATED, resources={"gpu": 1}, podTemplate=template)
    bound = Observed(children=without_job(after(planned(on_gpus), BOUND)))

    assert pod_of(planned(on_gpus))["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_of(planned(on_gpus, bound))
    given = manifest(model=CREATED, profile="sandboxed", podTemplate=template)
    assert pod_of(planned(given, settings=settings))["runtimeClassName"] == "kata"
