"""Several operators that watch the same objects, against a real API server."""

from typing import Any

from waiting import until


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
