"""Children with several owners, against a real API server."""

from dataclasses import replace
from typing import Any

import pytest
from kubernetes.aio.client import ApiException
from llm_operator.api.spec import parse
from llm_operator.control.cluster import Cluster
from llm_operator.control.record import Record
from llm_operator.control.watching.trim import trimmed
from llm_operator.kinds import CHILDREN
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import field_manager, shared_child
from llm_operator.plan.plan import plan
from llm_operator.settings import Settings
from waiting import until

SETTINGS = Settings(engine_image="engine:1")


@pytest.fixture(scope="module")
def unwatched(world: Any) -> str:
    """A namespace that no operator of a test watches."""
    return str(world.create_namespace(f"{world.namespace}-unwatched"))


async def share(
    world: Any, cluster: Cluster, manifest: Any, unwatched: str, name: str, key: ChildKey
) -> dict[str, str]:
    """Apply a child that the LLMDeployments NAME-0 and NAME-1 share; return their UIDs by name."""
    uids = {}
    for owner in (f"{name}-0", f"{name}-1"):
        world.apply(manifest(owner, unwatched))
        subject = world.get("llmd", owner, unwatched)
        planned = shared_child(parse(subject), key, SETTINGS, data={"a": "b"})
        await cluster.apply(unwatched, key, planned, field_manager(planned, owner))
        uids[owner] = subject["metadata"]["uid"]
    return uids


async def test_the_last_owner_that_is_removed_deletes_a_shared_child(
    world: Any, cluster: Cluster, manifest: Any, unwatched: str, name: str
) -> None:
    key = ChildKey("v1", "ConfigMap", name)
    uids = await share(world, cluster, manifest, unwatched, name[:40], key)
    first, second = uids

    await cluster.release(unwatched, key, uids[first], f"fairlead/{first}")
    left = world.get("configmap", name, unwatched)
    await cluster.release(unwatched, key, uids[second], f"fairlead/{second}")

    assert [owner["uid"] for owner in left["metadata"]["ownerReferences"]] == [uids[second]]
    assert left["data"] == {"a": "b"}
    assert world.find("configmap", name, unwatched) is None


async def test_a_release_fails_if_the_child_changes_meanwhile(
    world: Any, cluster: Cluster, manifest: Any, unwatched: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ChildKey("v1", "ConfigMap", name)
    uids = await share(world, cluster, manifest, unwatched, name[:40], key)
    first, second = uids
    find = Cluster.find

    async def find_and_change(self: Cluster, path: str) -> Any:
        found = await find(self, path)
        world.annotate("configmap", name, {"changed": found["metadata"]["resourceVersion"]}, unwatched)
        return found

    async def fails(owner: str) -> bool:
        with monkeypatch.context() as patched, pytest.raises(ApiException) as error:
            patched.setattr(Cluster, "find", find_and_change)
            await cluster.release(unwatched, key, uids[owner], f"fairlead/{owner}")
        return error.value.status == 409

    assert await fails(first)
    await cluster.release(unwatched, key, uids[second], f"fairlead/{second}")
    assert await fails(first)  # now the last owner, whose release deletes
    assert world.find("configmap", name, unwatched) is not None


async def test_a_release_leaves_an_object_alone_that_has_taken_the_name_of_the_child(
    world: Any, cluster: Cluster, manifest: Any, unwatched: str, name: str
) -> None:
    world.apply(manifest(name, unwatched))
    uid = world.get("llmd", name, unwatched)["metadata"]["uid"]
    stranger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": unwatched}}
    world.apply(stranger)

    await cluster.release(unwatched, ChildKey("v1", "ConfigMap", name), uid, f"fairlead/{name}")

    assert world.find("configmap", name, unwatched) is not None


@pytest.mark.more
async def test_operators_of_two_releases_do_not_rewrite_a_shared_claim_in_turns(
    world: Any, cluster: Cluster, manifest: Any, unwatched: str, name: str
) -> None:
    model = {"uri": f"hf://tests/{name}", "cache": {"size": "1Gi"}}
    operators = {f"{name[:40]}-{number}": replace(SETTINGS, version=f"{number}.0.0") for number in range(2)}
    for owner in operators:
        world.apply(manifest(owner, unwatched, model=model))
    existing: dict[ChildKey, Manifest] = {}
    writes = []

    for owner, settings in [*operators.items()] * 2:
        subject = world.get("llmd", owner, unwatched)
        goal = plan(parse(subject), Observed(subject=subject, children=existing), settings)
        ((key, planned),) = (item for item in goal.apply.items() if item[0].kind == "PersistentVolumeClaim")
        if not Record().is_settled(key, planned, existing.get(key)):
            applied = await cluster.apply(unwatched, key, planned, field_manager(planned, owner))
            existing = {key: trimmed(CHILDREN[key[:2]], applied)}
            writes.append(owner)

    # The second one's only write makes it an owner.
    assert writes == list(operators)
    (claim,) = existing.values()
    assert [owner["name"] for owner in claim["metadata"]["ownerReferences"]] == list(operators)


@pytest.mark.usefixtures("operator")
def test_llmdeployments_that_no_longer_use_a_shared_child_release_and_delete_it(
    world: Any, manifest: Any, name: str
) -> None:
    owners = [f"{name[:40]}-{number}" for number in range(2)]
    for owner in owners:
        world.apply(manifest(owner))
    deployments = [parse(world.get("llmd", owner)) for owner in owners]
    key = ChildKey("v1", "ConfigMap", name)

    for deployment in deployments:
        planned = shared_child(deployment, key, SETTINGS, data={"a": "b"})
        world.apply(planned, manager=field_manager(planned, deployment.name))

    until(lambda: world.find("configmap", name) is None)


async def test_further_owners_of_a_child_that_is_as_planned_change_nothing_else(
    world: Any, cluster: Cluster, unwatched: str, name: str
) -> None:
    key = ChildKey("v1", "ConfigMap", name)
    owners = [
        {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "name": each, "uid": each}
        for each in "abc"
    ]
    metadata = {"labels": {"fairlead.dev/llmdeployment": ""}, "ownerReferences": owners[:1]}
    metadata |= {"name": name, "namespace": unwatched}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})
    before = world.get("configmap", name, unwatched)

    for owner in owners[1:]:
        uid = before["metadata"]["uid"]
        after = await cluster.share(unwatched, key, uid, owner, f"fairlead/{owner['name']}")

    assert [each["uid"] for each in after["metadata"]["ownerReferences"]] == ["a", "b", "c"]
    assert (after["data"], after["metadata"]["labels"]) == ({"a": "b"}, metadata["labels"])
    with pytest.raises(ApiException):
        await cluster.share(unwatched, key, "another", owners[0], "fairlead/a")
