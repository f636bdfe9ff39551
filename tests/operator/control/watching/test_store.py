"""The store of watch state: the newest state of each object, by the LLMDeployments that it belongs to."""

from typing import Any

import pytest
from llm_operator import metrics
from llm_operator.control.watching import room
from llm_operator.control.watching.claims import Claims
from llm_operator.control.watching.store import Ref, Store
from llm_operator.kinds import CHILDREN, LLMDEPLOYMENTS, PODS, REPLICA_SETS
from llm_operator.observed import ChildKey

from engine_server.contract.cluster.api import Key

KEY = Key("default", "a")
SERVICES = CHILDREN["v1", "Service"]
SERVICE = ChildKey("v1", "Service", "a-engine")
REF = Ref(SERVICES, "default", "a-engine")


OWNER = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "name": "a", "uid": "u"}


def service(version: int, **metadata: Any) -> dict[str, Any]:
    labels = {"fairlead.dev/llmdeployment": "a"}
    own = {"name": "a-engine", "namespace": "default", "resourceVersion": str(version), "labels": labels}
    own["ownerReferences"] = [OWNER]
    return {"metadata": own | metadata, "spec": {"port": version}}


def port(store: Store) -> int:
    found: int = store.children(KEY)[SERVICE]["spec"]["port"]
    return found


def test_an_older_state_never_replaces_a_newer_one() -> None:
    store = Store()
    store.put(SERVICES, service(7))

    affected = store.put(SERVICES, service(5))

    assert affected == frozenset()
    assert port(store) == 7


def test_a_list_from_before_a_deletion_does_not_bring_the_object_back() -> None:
    store = Store()
    store.put(SERVICES, service(5))
    assert store.remove(REF, 8) == {KEY}

    store.put(SERVICES, service(5))
    assert store.children(KEY) == {}

    store.put(SERVICES, service(9))
    assert port(store) == 9


def test_a_deletion_from_before_a_creation_is_ignored() -> None:
    store = Store()
    store.put(SERVICES, service(9))

    assert store.remove(REF, 8) == frozenset()
    assert port(store) == 9


def test_nobody_is_affected_by_a_change_that_nothing_reads() -> None:
    store = Store()
    unread = {"managedFields": [{"manager": "kubectl"}]}
    first, second = service(5), service(6, **unread)
    second["spec"] = first["spec"]
    assert store.put(SERVICES, first) == {KEY}

    assert store.put(SERVICES, second) == frozenset()


def test_a_shared_child_belongs_to_all_its_owners() -> None:
    store = Store()
    owners = [
        {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "name": name, "uid": name}
        for name in ("a", "b")
    ]
    both = {Key("default", "a"), Key("default", "b")}

    assert store.put(SERVICES, service(5, labels={}, ownerReferences=owners)) == both
    assert SERVICE in store.children(Key("default", "b"))

    assert store.put(SERVICES, service(6, labels={}, ownerReferences=owners[:1])) == both
    assert store.children(Key("default", "b")) == {}


def test_pods_are_kept_without_their_spec() -> None:
    store = Store()
    pod = service(5) | {
        "spec": {"nodeName": "n", "containers": [{"name": "engine"}]},
        "status": {"phase": "Running"},
    }

    store.put(PODS, pod)

    (found,) = store.objects(PODS, KEY)
    assert found["spec"] == {"nodeName": "n"}
    assert found["status"] == {"phase": "Running"}


def test_replica_sets_are_kept_with_the_volumes_of_their_template_alone() -> None:
    store = Store()
    volumes = [{"name": "keys", "configMap": {"name": "a-keys"}}]
    template = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "engine"}], "volumes": volumes}}

    store.put(REPLICA_SETS, service(5) | {"spec": {"replicas": 2, "selector": {}, "template": template}})

    (kept,) = store.objects(REPLICA_SETS, KEY)
    assert kept["spec"] == {"replicas": 2, "template": {"spec": {"volumes": volumes}}}


def test_readers_cannot_change_what_is_stored() -> None:
    store = Store()
    store.put(SERVICES, service(5))

    store.children(KEY)[SERVICE]["spec"]["port"] = 0

    assert port(store) == 5


def test_a_changed_claim_affects_the_others_whose_name_has_another_holder_by_it() -> None:
    store = Store()

    def llmdeployment(name: str, version: int, *served: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default", "resourceVersion": str(version)}
        return {"metadata": metadata, "spec": {"model": {"servedNames": list(served)}}}

    store.put(LLMDEPLOYMENTS, llmdeployment("a", 1, "llama"))

    assert store.put(LLMDEPLOYMENTS, llmdeployment("b", 2, "llama")) == {Key("default", "b")}
    assert store.remove(Ref(LLMDEPLOYMENTS, "default", "a"), 3) == {KEY, Key("default", "b")}


def test_a_deletion_is_forgotten_with_the_first_list_that_is_not_older() -> None:
    store = Store()
    store.remove(REF, 8)

    for resource, namespace, version in (
        (SERVICES, "default", 7),
        (PODS, "default", 9),
        (SERVICES, "other", 9),
    ):
        store.forget_deletions(resource, namespace, version)
        store.put(SERVICES, service(5))
        assert store.children(KEY) == {}, "the list that the object comes from may be older than the deletion"

    store.forget_deletions(SERVICES, "default", 8)

    assert store.deletions == {}


def test_a_refused_name_is_no_claim() -> None:
    store = Store()
    names = ["mine", "victim/llama", "a\x1b[2Jb"]
    adapters = [{"name": "Org/b"}, {"name": "b"}]
    metadata = {"name": "a", "namespace": "evil", "resourceVersion": "1"}
    spec = {"model": {"servedNames": names}, "adapters": adapters}
    store.put(LLMDEPLOYMENTS, {"metadata": metadata, "spec": spec})

    assert store.claims.by_key[Key("evil", "a")].served_names == ("mine", "b")


def test_names_of_allowed_organizations_are_claims() -> None:
    store = Store(claims=Claims(frozenset({"openai"})))
    names = ["Qwen/Qwen3-0.6B", "openai/gpt-oss-20b", "google/gemma-3-4b-it"]
    metadata = {"name": "a", "namespace": "x", "resourceVersion": "1"}
    store.put(LLMDEPLOYMENTS, {"metadata": metadata, "spec": {"model": {"servedNames": names}}})

    assert store.claims.by_key[Key("x", "a")].served_names == ("Qwen/Qwen3-0.6B", "openai/gpt-oss-20b")


def config_map(
    name: str, version: int, size: int, namespace: str = "default", **metadata: Any
) -> dict[str, Any]:
    labels = {"fairlead.dev/llmdeployment": "a"}
    own = {"name": name, "namespace": namespace, "resourceVersion": str(version), "labels": labels}
    return {"metadata": own | metadata, "data": {"a": "x" * size}}


CONFIG_MAPS = CHILDREN["v1", "ConfigMap"]


def test_what_has_no_owner_is_known_by_name_alone_and_its_end_is_reported() -> None:
    store = Store()
    for number in range(300):
        assert store.put(CONFIG_MAPS, config_map(f"c{number}", 5, 100_000)) == {KEY}
    assert store.children(KEY) == {} and store.unread(KEY) == []
    assert store.room.total == 0
    assert store.version(Ref(CONFIG_MAPS, "default", "c7")) == 5
    assert store.remove(Ref(CONFIG_MAPS, "default", "c7"), 6) == {KEY}

    # Adopted by now.
    store.put(CONFIG_MAPS, config_map("c8", 7, 10, ownerReferences=[OWNER]))
    assert [key.name for key in store.children(KEY)] == ["c8"]


def test_a_namespace_keeps_so_many_bytes_and_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "NAMESPACE_BYTES", 10_000)
    monkeypatch.setattr(room, "TOTAL_BYTES", 15_000)
    store, owned = Store(), {"ownerReferences": [OWNER]}
    for number in range(5):
        store.put(CONFIG_MAPS, config_map(f"c{number}", 5, 4_000, **owned))
    assert [key.name for key in store.children(KEY)] == ["c0", "c1"]
    assert [ref.name for ref in store.unread(KEY)] == ["c2", "c3", "c4"]
    assert metrics.NOT_KEPT.labels("default")._value.get() == 3

    store.put(SERVICES, {**service(5), "metadata": {**service(5)["metadata"], "namespace": "other"}})
    assert store.unread(Key("other", "a")) == []

    store.remove(Ref(CONFIG_MAPS, "default", "c0"), 6)
    store.put(CONFIG_MAPS, config_map("c2", 6, 4_000, **owned))
    assert [key.name for key in store.children(KEY)] == ["c1", "c2"]
    for number in range(5):
        store.remove(Ref(CONFIG_MAPS, "default", f"c{number}"), 9)
    store.remove(Ref(SERVICES, "other", "a-engine"), 9)
    assert (store.room.total, store.room.kept, store.room.left_out) == (0, {}, {})


def test_all_namespaces_together_keep_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TOTAL_BYTES", 15_000)
    store = Store()
    for number in range(5):
        store.put(CONFIG_MAPS, config_map("c", 5, 4_000, f"n{number}", ownerReferences=[OWNER]))
    assert store.room.total <= 15_000
    assert [bool(store.unread(Key(f"n{number}", "a"))) for number in range(5)] == [False] * 3 + [True] * 2


def test_a_change_of_what_is_not_kept_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "NAMESPACE_BYTES", 10)
    store = Store()
    store.put(SERVICES, service(5))
    assert store.put(SERVICES, service(6)) == {KEY}
    assert store.put(SERVICES, service(6)) == frozenset()


def test_a_further_owner_of_a_shared_object_affects_no_other_owner() -> None:
    store = Store()
    further = [{**OWNER, "name": name, "uid": name} for name in "abc"]
    store.put(SERVICES, service(5, ownerReferences=further[:2], labels={"fairlead.dev/llmdeployment": ""}))

    def put(version: int, owners: list[dict[str, str]], **spec: Any) -> set[str]:
        labels = {"fairlead.dev/llmdeployment": ""}
        manifest = service(version, ownerReferences=owners, labels=labels) | {"spec": {"port": 5} | spec}
        return {key.name for key in store.put(SERVICES, manifest)}

    assert put(6, further) == {"c"}
    assert put(7, further[1:]) == {"a"}
    assert put(8, further, extra=1) == {"a", "b", "c"}
    assert put(9, further, extra=2) == {"a", "b", "c"}
