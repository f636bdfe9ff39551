"""An operator takes over what 0.2.0 has applied, and 0.2.0 what today's has: no replica is replaced, and none hangs."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
from compat.exchange import content_of
from compat.sample import MANIFEST, SETTINGS, UID, observe, planned
from llm_operator.api.spec import parse
from llm_operator.observed import ChildKey, Manifest, workload_key
from llm_operator.plan.plan import Plan, plan
from llm_operator.plan.pod.adapters import of_other_models
from llm_operator.plan.pod.template import typed

from engine_server.contract.adapters import WantedAdapters

RECORDINGS = Path(__file__).parent / "0.2.0" / "recordings"
WORKLOAD = workload_key("llama")
FILES_OF_0_2_0 = ChildKey("v1", "ConfigMap", "llama-files")


def children_of_0_2_0() -> list[Manifest]:
    cases = json.loads((RECORDINGS / "children.json").read_text())["cases"]
    return [json.loads(content_of(case)) for case in cases.values()]


def upgraded(manifest: Manifest, children: list[Manifest], **state: Any) -> Plan:
    return plan(parse(manifest), observe(manifest, children, **state), SETTINGS)


def with_file(content: str) -> Manifest:
    """Return the sample with another content of its file."""
    changed = deepcopy(MANIFEST)
    changed["spec"]["engine"]["files"][0]["content"] = content
    return changed


def replica_set(workload: Manifest, replicas: int) -> Manifest:
    """Return the ReplicaSet of a Deployment, as the store keeps it."""
    metadata = {"annotations": workload["metadata"]["annotations"], "ownerReferences": [{"uid": "d-1"}]}
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    spec = {"replicas": replicas, "template": {"spec": {"volumes": volumes}}}
    return {"metadata": {"uid": "rs-1", **metadata}, "spec": spec}


def workload_of(children: list[Manifest]) -> Manifest:
    (workload,) = (child for child in children if child["kind"] == "Deployment")
    workload["metadata"]["uid"] = "d-1"
    return workload


def test_an_upgrade_keeps_the_template_and_the_files_that_it_mounts() -> None:
    children = children_of_0_2_0()
    (files,) = (child for child in children if child["metadata"]["name"] == "llama-files")

    goal = upgraded(MANIFEST, children)

    assert goal.apply[WORKLOAD]["spec"]["template"] == workload_of(children)["spec"]["template"]
    assert goal.apply[FILES_OF_0_2_0]["data"] == files["data"]
    assert goal.delete == ()
    # By which 0.2.0 finds the template after a rollback.
    before, after = (
        each["metadata"]["annotations"] for each in (workload_of(children), goal.apply[WORKLOAD])
    )
    assert all(after[name] == before[name] for name in ("fairlead.dev/spec-hash", "fairlead.dev/record-hash"))


def test_an_upgrade_names_the_model_of_a_list_and_sends_it_to_engines_of_0_2_0() -> None:
    children = children_of_0_2_0()
    workload = workload_of(children)
    pod = {"metadata": {"name": "llama-engine-1", "ownerReferences": [{"uid": "rs-1"}]}}

    goal = upgraded(MANIFEST, children)

    content = goal.apply[ChildKey("v1", "ConfigMap", "llama-adapters")]["data"]["adapters.json"]
    wanted = msgspec.json.decode(content, type=WantedAdapters)
    observed = observe(MANIFEST, children, pods=(pod,), replica_sets=(replica_set(workload, 1),))
    assert wanted.model == MANIFEST["spec"]["model"]["uri"]
    assert goal.apply[WORKLOAD]["spec"]["template"] == workload["spec"]["template"]
    assert of_other_models(wanted, observed) == set()
    assert of_other_models(WantedAdapters([], "hf://org/other"), observed) == {"llama-engine-1"}


def test_another_content_after_an_upgrade_leaves_the_files_of_running_replicas_as_they_are() -> None:
    children = children_of_0_2_0()
    before = workload_of(children)
    rolled = upgraded(with_file("other"), children)
    after = [*rolled.apply.values(), *(child for child in children if child["kind"] == "ConfigMap")]

    during = upgraded(with_file("other"), after, replica_sets=(replica_set(before, 1),))
    retained = upgraded(with_file("other"), after, replica_sets=(replica_set(before, 0),))
    afterwards = upgraded(with_file("other"), after)

    assert rolled.apply[WORKLOAD]["spec"]["template"] != before["spec"]["template"]
    assert FILES_OF_0_2_0 not in rolled.apply.keys() | during.apply.keys()
    assert (rolled.delete, during.delete, retained.delete) == ((), (), ())
    assert afterwards.delete == (FILES_OF_0_2_0,)


def test_a_spec_that_is_reverted_to_a_template_of_0_2_0_gets_files_of_its_own() -> None:
    children = children_of_0_2_0()
    retained = replica_set(workload_of(children), 0)
    # 0.2.0 has rolled another content out into the ConfigMap of the same name.
    template = workload_of(children)["spec"]["template"]
    template["metadata"]["annotations"]["fairlead.dev/files-hash"] = "other"
    workload_of(children)["metadata"]["annotations"]["fairlead.dev/spec-hash"] = "v2-other"

    reverted = upgraded(MANIFEST, children, replica_sets=(retained,))

    (mounted,) = (
        name for name in typed(reverted.apply[WORKLOAD]["spec"]["template"]).config_maps if "files" in name
    )
    assert mounted.startswith("llama-files-")
    assert reverted.apply[ChildKey("v1", "ConfigMap", mounted)]["data"] == {"0": "hello"}
    assert FILES_OF_0_2_0 not in reverted.apply
    assert reverted.delete == ()


def test_after_a_rollback_0_2_0_deletes_no_file_that_pods_mount() -> None:
    children = planned(MANIFEST)
    template = children[WORKLOAD]["spec"]["template"]

    # What it owns and does not plan: by the label if that has the name, and as a shared one if that is empty.
    pruned = {
        key
        for key, child in children.items()
        if any(owner["uid"] == UID for owner in child["metadata"]["ownerReferences"])
        and child["metadata"]["labels"]["fairlead.dev/llmdeployment"] in ("llama", "")
    }

    mounted = {ChildKey("v1", "ConfigMap", name) for name in typed(template).config_maps}
    planned_by_0_2_0 = {ChildKey.of(child) for child in children_of_0_2_0()}
    assert mounted - planned_by_0_2_0
    assert not mounted & (pruned - planned_by_0_2_0)
