"""The Lease, with several operators at the same time, against a real API server."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientConnectionError
from llm_operator.command import log_error
from llm_operator.control import lease
from operators import Operator
from waiting import until

LEASE = "fairlead-operator"


@pytest.fixture
def home(world: Any, name: str) -> str:
    """A namespace that no other test has."""
    return str(world.create_namespace(f"{world.namespace}-{name}"[:60].strip("-")))


@pytest.fixture
def start(world: Any, home: str, start_operator: Any) -> Callable[[], Operator]:
    """Return a function that starts an operator of the namespace."""
    return partial(
        start_operator, world.service_account(home), f"--namespace={home}", f"--lease-namespace={home}"
    )


def holder(world: Any, home: str) -> str | None:
    """Return the holder of the lease, None while there is no lease or nobody holds it."""
    found = world.find("lease", LEASE, home)
    return found["spec"].get("holderIdentity") if found else None


def test_a_second_operator_stands_by_until_a_signal_ends_the_first(
    world: Any, home: str, start: Any, start_process: Any
) -> None:
    first = start_process(world.service_account(home), f"--namespace={home}", f"--lease-namespace={home}")
    until(lambda: first.logged(f"this operator holds {home}/{LEASE}"))
    second = start()
    until(lambda: second.logged("standing by: "))
    assert not second.logged("this operator holds")
    assert first.stop() == 0
    until(lambda: second.logged(f"this operator holds {home}/{LEASE}"))


def test_an_operator_takes_over_a_lease_that_its_holder_does_not_renew(
    world: Any, home: str, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DURATION_SECONDS", 1)
    world.patch("lease", LEASE, {"spec": {"holderIdentity": "killed"}}, home)

    operator = start()

    until(lambda: operator.logged("standing by: killed holds"))
    until(lambda: operator.logged(f"this operator holds {home}/{LEASE}"))
    assert holder(world, home) != "killed"


def test_an_operator_that_stands_by_can_be_stopped(home: str, start: Any) -> None:
    first = start()
    until(lambda: first.logged(f"this operator holds {home}/{LEASE}"))
    second = start()
    until(lambda: second.logged("standing by: "))

    assert second.stop() == 0
    assert "this operator holds" not in second.log
    assert first.is_running


def test_creates_its_lease_where_it_may(
    world: Any, home: str, start_operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DURATION_SECONDS", 1)
    operator = start_operator(world.kubeconfig, f"--namespace={home}", f"--lease-namespace={home}")
    until(lambda: operator.logged(f"this operator holds {home}/{LEASE}"))
    assert holder(world, home)
    assert operator.stop() == 0
    assert holder(world, home) == ""


@pytest.fixture
def often_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make operators look at their lease often."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.1)


@pytest.mark.usefixtures("often_renewed")
def test_an_operator_that_loses_its_lease_ends(world: Any, home: str, start: Any) -> None:
    operator = start()
    until(lambda: operator.logged(f"this operator holds {home}/{LEASE}"))
    world.patch("lease", LEASE, {"spec": {"holderIdentity": "other"}}, home)
    assert operator.wait() == 1
    assert "the lease is lost" in operator.log
    assert "Traceback" not in operator.log
    assert holder(world, home) == "other"


def test_an_operator_that_finds_no_lease_waits_for_one_whose_lease_was_deleted(
    world: Any, home: str, start: Any
) -> None:
    working = start()
    until(lambda: working.logged(f"this operator holds {home}/{LEASE}"))
    before = holder(world, home)

    # As `helm upgrade` does to a release that had one.
    world.delete("lease", LEASE, home)
    other = start()

    until(lambda: other.logged(f"standing by: {before} holds"))
    assert not other.logged("this operator holds")
    assert working.is_running


@pytest.mark.usefixtures("often_renewed")
def test_a_deleted_lease_is_created_again(world: Any, home: str, start: Any) -> None:
    operator = start()
    until(lambda: operator.logged(f"this operator holds {home}/{LEASE}"))
    before = holder(world, home)

    world.delete("lease", LEASE, home)

    until(lambda: holder(world, home) == before)
    assert operator.stop() == 0


@pytest.mark.parametrize(
    ("stops", "error", "logged"),
    [
        (True, ClientConnectionError("closed"), False),
        (True, ValueError("wrong"), True),
        (False, ClientConnectionError("closed"), True),
    ],
)
async def test_calls_that_the_stop_cuts_off_are_no_errors(
    stops: bool, error: Exception, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    if stops:
        stop.set()
    log_error(stop, asyncio.get_running_loop(), {"message": "never retrieved", "exception": error})
    assert ("never retrieved" in caplog.text) == logged
