"""Drain timings: a part outlives what it waits for."""

from pathlib import Path

import yaml

from engine_server.contract import drain

VALUES = Path(__file__).parents[2] / "charts" / "fairlead" / "values.yaml"


def test_a_pod_is_killed_only_after_its_pre_stop_and_its_drain():
    grace = drain.termination_grace(drain.DEFAULT_DRAIN_TIMEOUT_SECONDS)

    assert grace > drain.PRE_STOP_SECONDS + drain.DEFAULT_DRAIN_TIMEOUT_SECONDS + drain.ANNOUNCE_SECONDS


def test_a_router_is_killed_only_after_its_drain():
    drained = drain.ANNOUNCE_SECONDS + drain.DEFAULT_DRAIN_TIMEOUT_SECONDS

    assert drained < drain.ROUTER_GRACE_SECONDS


def test_the_chart_gives_the_router_the_same_grace_as_fairlead_up():
    values = yaml.safe_load(VALUES.read_text())

    assert values["router"]["terminationGracePeriodSeconds"] == drain.ROUTER_GRACE_SECONDS
