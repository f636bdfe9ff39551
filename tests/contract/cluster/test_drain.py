"""Drain timings: a part outlives what it waits for."""

from pathlib import Path

import yaml

from engine_server.contract.cluster import drain

VALUES = Path(__file__).parents[3] / "charts" / "fairlead" / "values.yaml"


def test_a_pod_is_killed_only_after_its_pre_stop_and_its_drain():
    grace = drain.termination_grace(drain.DEFAULT_DRAIN_TIMEOUT_SECONDS)

    assert grace > drain.PRE_STOP_SECONDS + drain.DEFAULT_DRAIN_TIMEOUT_SECONDS + drain.ANNOUNCE_SECONDS


def test_a_router_is_killed_only_after_its_drain():
    for timeout in (5, drain.DEFAULT_DRAIN_TIMEOUT_SECONDS, 3600):
        assert drain.ANNOUNCE_SECONDS + timeout < drain.termination_grace(timeout)


def test_the_chart_limits_the_drain_of_routers_above_the_default_of_a_deployment():
    router = yaml.safe_load(VALUES.read_text())["router"]

    assert router["drainGraceSeconds"] == drain.ANNOUNCE_SECONDS
    assert router["drainTimeoutSeconds"] > drain.DEFAULT_DRAIN_TIMEOUT_SECONDS
