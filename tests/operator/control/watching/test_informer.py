"""Namespaces that are missing, and the reasons for which an operator is unhealthy."""

import time
import urllib.request
from typing import Any

import pytest
from kubernetes.aio.client import Configuration
from llm_operator.control.queue import WorkQueue
from llm_operator.control.watching.informer import Informer
from llm_operator.control.watching.store import Store
from llm_operator.settings import Settings
from waiting import until


def missing(operator: Any, namespace: str) -> str:
    """Return the metric for a namespace, as text."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    series = f'fairlead_operator_namespace_missing{{namespace="{namespace}"}} '
    return next(line.removeprefix(series) for line in lines if line.startswith(series))


def test_a_missing_namespace_blocks_no_other_and_recovers_without_a_restart(
    world: Any, manifest: Any, start_operator: Any, name: str
) -> None:
    world.kubectl("create", "namespace", "present")
    account = world.service_account("present", "present")
    flags = ("--namespace=absent", "--namespace=present", "--lease-namespace=present")
    operator = start_operator(account, *flags)
    world.apply(manifest(name, namespace="present"))

    until(lambda: world.condition(name, "Ready", "present"))
    assert (missing(operator, "absent"), missing(operator, "present")) == ("1.0", "0.0")
    assert operator.log.read_text().count("cannot list namespace absent") == 1

    world.kubectl("create", "namespace", "absent")
    world.service_account("present", "present", "absent")
    world.apply(manifest(name, namespace="absent"))

    until(lambda: world.condition(name, "Ready", "absent"))
    assert missing(operator, "absent") == "0.0"
    assert operator.stop() == 0


@pytest.fixture
def informer() -> Informer:
    settings = Settings(engine_image="engine:1")
    fresh = Informer(None, Store(), WorkQueue(), Configuration(), settings, "team-a")  # type: ignore[arg-type]
    for watch in fresh.watches:
        watch.open()
    return fresh


def test_an_operator_with_open_watches_and_recent_lists_is_healthy(informer: Informer) -> None:
    assert list(informer.problems()) == []


def test_a_watch_that_is_interrupted_for_a_minute_is_a_problem(informer: Informer) -> None:
    watch = informer.watches[0]
    watch.interrupt()
    assert list(informer.problems()) == []

    watch.since = time.monotonic() - 61

    assert list(informer.problems()) == ["llmdeployments of namespace team-a were not watched for 61 s"]


def test_a_relist_that_is_overdue_for_a_minute_is_a_problem(informer: Informer) -> None:
    informer.listed_at = time.monotonic() - 119
    assert list(informer.problems()) == []

    informer.listed_at = time.monotonic() - 121

    assert list(informer.problems()) == ["namespace team-a was not listed for 121 s"]


def test_a_missing_namespace_is_no_problem(informer: Informer) -> None:
    informer.listed_at = 0
    informer.is_missing = True

    assert list(informer.problems()) == []
