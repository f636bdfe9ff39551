"""An operator takes over what another release's has applied: no replica is replaced, and no file is lost under one."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compat.exchange import content_of
from compat.record import HERE
from compat.sample import MANIFEST, SETTINGS, observe
from llm_operator.api.spec import parse
from llm_operator.observed import ChildKey, Manifest, workload_key
from llm_operator.plan.plan import Plan, plan

RECORDED = sorted(HERE.glob("*/children.json"))
NEXT_RELEASE = replace(SETTINGS, engine_image="fairlead-engine:1", version="1")
WORKLOAD = workload_key("llama")


@pytest.fixture(params=RECORDED, ids=[file.parent.name for file in RECORDED])
def children(request: pytest.FixtureRequest) -> list[Manifest]:
    """Return the children that a generation's operator has applied."""
    file: Path = request.param
    return [json.loads(content_of(case)) for case in json.loads(file.read_text())["cases"].values()]


def upgraded(manifest: Manifest, children: Sequence[Manifest], **state: Any) -> Plan:
    return plan(parse(manifest), observe(manifest, children, **state), NEXT_RELEASE)


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


def workload_of(children: Sequence[Manifest]) -> Manifest:
    (workload,) = (child for child in children if child["kind"] == "Deployment")
    workload["metadata"]["uid"] = "d-1"
    return workload


def files_of(children: Sequence[Manifest]) -> Manifest:
    """Return the ConfigMap with files, which is the one that never changes."""
    (files,) = (child for child in children if child.get("immutable"))
    return files


def test_an_upgrade_keeps_the_template_with_its_record_and_the_files_that_it_mounts(
    children: list[Manifest],
) -> None:
    files = files_of(children)

    goal = upgraded(MANIFEST, children)

    assert goal.apply[WORKLOAD]["spec"]["template"] == workload_of(children)["spec"]["template"]
    assert goal.apply[ChildKey.of(files)]["data"] == files["data"]
    assert goal.delete == ()
    # By which the former operator finds the template after a rollback.
    before, after = (
        each["metadata"]["annotations"] for each in (workload_of(children), goal.apply[WORKLOAD])
    )
    assert all(after[name] == before[name] for name in ("fairlead.dev/spec-hash", "fairlead.dev/record-hash"))


def test_another_content_after_an_upgrade_leaves_the_files_of_running_replicas_as_they_are(
    children: list[Manifest],
) -> None:
    before, files = workload_of(children), ChildKey.of(files_of(children))
    rolled = upgraded(with_file("other"), children)
    after = [*rolled.apply.values(), *(child for child in children if child["kind"] == "ConfigMap")]

    during = upgraded(with_file("other"), after, replica_sets=(replica_set(before, 1),))
    retained = upgraded(with_file("other"), after, replica_sets=(replica_set(before, 0),))
    afterwards = upgraded(with_file("other"), after)

    assert rolled.apply[WORKLOAD]["spec"]["template"] != before["spec"]["template"]
    assert files not in rolled.apply.keys() | during.apply.keys()
    assert (rolled.delete, during.delete, retained.delete) == ((), (), ())
    assert afterwards.delete == (files,)
