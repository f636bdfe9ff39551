"""The Lease between operators, against a real API server."""

from typing import Any

from waiting import until


def test_a_second_operator_stands_by_until_the_first_stops(world: Any, start_operator: Any) -> None:
    world.kubectl("create", "namespace", "pair")
    account = world.service_account("pair", "pair")
    flags = ("--namespace=pair", "--lease-namespace=pair")
    first = start_operator(account, *flags)
    until(lambda: first.logged("this operator holds pair/fairlead-operator"))
    second = start_operator(account, *flags)
    until(lambda: second.logged("standing by: "))
    assert not second.logged("this operator holds")
    assert first.stop() == 0
    until(lambda: second.logged("this operator holds pair/fairlead-operator"))


def test_creates_its_lease_where_it_may(world: Any, start_operator: Any) -> None:
    world.kubectl("create", "namespace", "bare")
    operator = start_operator(world.api_server.kubeconfig, "--namespace=bare", "--lease-namespace=bare")
    until(lambda: operator.logged("this operator holds bare/fairlead-operator"))
    assert world.get("lease", "fairlead-operator", "bare")["spec"]["holderIdentity"]
    assert operator.stop() == 0
    assert world.get("lease", "fairlead-operator", "bare")["spec"]["holderIdentity"] == ""


def test_an_operator_that_loses_its_lease_ends(world: Any, start_operator: Any) -> None:
    world.kubectl("create", "namespace", "lost")
    operator = start_operator(
        world.service_account("lost", "lost"), "--namespace=lost", "--lease-namespace=lost"
    )
    until(lambda: operator.logged("this operator holds lost/fairlead-operator"))
    other = '{"spec": {"holderIdentity": "other"}}'
    world.kubectl("patch", "lease", "fairlead-operator", "-n", "lost", "--type=merge", "-p", other)
    assert operator.process.wait(30) == 1
    assert "the lease is lost" in operator.log.read_text()
    assert "Traceback" not in operator.log.read_text()
    assert world.get("lease", "fairlead-operator", "lost")["spec"]["holderIdentity"] == "other"


def test_a_deleted_lease_is_created_again(world: Any, start_operator: Any) -> None:
    world.kubectl("create", "namespace", "deleted")
    operator = start_operator(
        world.service_account("deleted", "deleted"), "--namespace=deleted", "--lease-namespace=deleted"
    )
    until(lambda: operator.logged("this operator holds deleted/fairlead-operator"))
    holder = world.get("lease", "fairlead-operator", "deleted")["spec"]["holderIdentity"]

    world.kubectl("delete", "lease", "fairlead-operator", "-n", "deleted")

    until(lambda: holds(world, holder, "deleted"))
    assert operator.stop() == 0


def holds(world: Any, holder: str, namespace: str) -> bool:
    listed = world.kubectl("get", "leases", "-n", namespace, "-o", "jsonpath={.items[*].spec.holderIdentity}")
    return bool(listed == holder)
