"""Several operators that watch the same objects, against a real API server."""

from typing import Any

from waiting import until


def test_second_operator_changes_nothing_and_names_the_first_until_it_is_told_to_take_over(
    world: Any, start_operator: Any, manifest: Any
) -> None:
    for namespace in ("shared", "first-home", "second-home"):
        world.kubectl("create", "namespace", namespace)
    accounts = [world.service_account(home, "shared", home) for home in ("first-home", "second-home")]

    def start(number: int, *flags: str) -> Any:
        home = ("first-home", "second-home")[number]
        watching = ("--namespace=shared", f"--lease-namespace={home}", f"--engine-image=engine:{number}")
        return start_operator(accounts[number], *watching, *flags)

    def deployment() -> Any:
        return world.get("deployment", "model-engine", "shared")

    first = start(0)
    world.apply(manifest("model", "shared"))
    until(deployment)
    assert world.get("llmd", "model", "shared")["status"]["operator"] == "first-home/fairlead-operator"
    second = start(1)
    until(lambda: second.logged("the operator first-home/fairlead-operator manages it"))
    assert first.stop() == 0

    before = deployment()
    world.apply(manifest("model", "shared", engine={"maxModelLen": 512}))
    world.apply(manifest("other", "shared"))
    # The second one manages what nobody has taken before.
    until(
        lambda: world.get("llmd", "other", "shared")["status"]["operator"] == "second-home/fairlead-operator"
    )
    assert deployment()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert second.stop() == 0

    third = start(1, "--take-over")
    until(lambda: deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:1")
    assert third.logged("taken over from the operator first-home/fairlead-operator")
    assert world.get("llmd", "model", "shared")["status"]["operator"] == "second-home/fairlead-operator"
