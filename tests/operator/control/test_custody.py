"""Several operators that watch the same objects, against a real API server."""

from typing import Any

from llm_operator import metrics
from llm_operator.control.cluster import Cluster
from llm_operator.control.reconcile import Reconciler
from llm_operator.kinds import LLMDEPLOYMENTS
from llm_operator.settings import Settings
from waiting import until

from engine_server.contract.cluster.api import Key


def test_second_operator_changes_nothing_and_names_the_first_until_it_is_told_to_take_over(
    world: Any, start_operator: Any, manifest: Any
) -> None:
    shared = world.namespace
    homes = [world.create_namespace(f"{shared}-{number}") for number in ("first", "second")]
    accounts = [world.service_account(home, shared, home) for home in homes]
    leases = [f"{home}/fairlead-operator" for home in homes]

    def start(number: int, *flags: str) -> Any:
        watching = (
            f"--namespace={shared}",
            f"--lease-namespace={homes[number]}",
            f"--engine-image=engine:{number}",
        )
        return start_operator(accounts[number], *watching, *flags)

    def deployment() -> Any:
        return world.get("deployment", "model-engine")

    def manager(name: str) -> str:
        return str(world.get("llmd", name).get("status", {}).get("operator", ""))

    first = start(0)
    world.apply(manifest("model"))
    until(deployment)
    assert manager("model") == leases[0]
    second = start(1)
    until(lambda: second.logged(f"the operator {leases[0]} manages it"))
    assert first.stop() == 0

    before = deployment()
    world.apply(manifest("model", engine={"maxModelLen": 512}))
    world.apply(manifest("other"))
    # The second one manages what nobody has taken before.
    until(lambda: manager("other") == leases[1])
    assert deployment()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert second.stop() == 0

    third = start(1, "--take-over")
    until(lambda: deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:1")
    assert third.logged(f"taken over from the operator {leases[0]}")
    assert manager("model") == leases[1]


async def test_an_object_that_another_operator_has_taken_has_no_series_here(
    world: Any, manifest: Any, cluster_of_operator: Cluster
) -> None:
    key = Key(world.namespace, "taken")
    reconciler = Reconciler(cluster_of_operator, Settings(engine_image="engine:1", operator="home/lease"))

    async def reconcile() -> None:
        reconciler.store.put(LLMDEPLOYMENTS, world.get("llmd", "taken"))
        await reconciler.reconcile(key)

    def is_reported() -> bool:
        found = (sample.labels for family in metrics.STATUS.collect() for sample in family.samples)
        return any((each.get("namespace"), each.get("name")) == key for each in found)

    world.apply(manifest("taken"))
    await reconcile()
    assert is_reported()

    world.set_status("llmd", "taken", {"operator": "other/lease"})
    await reconcile()

    assert not is_reported()
