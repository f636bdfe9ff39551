"""The alerts: `promtool` evaluates them over made-up series, and each has a section of instructions."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from charts.monitoring.alerts import ABSENCE_ALERTS, ALERTS

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts" / "fairlead" / "files" / "rules.yaml"
CASES = Path(__file__).with_name("alerts.test.yaml")
NAMES = [alert.name for alert in (*ALERTS, *ABSENCE_ALERTS)]

Promtool = Callable[..., subprocess.CompletedProcess[str]]


def test_alerts_are_valid_rules(promtool: Promtool) -> None:
    checked = promtool("check", "rules", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_fire_where_they_should_and_are_silent_elsewhere(promtool: Promtool) -> None:
    tested = promtool("test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load(CASES.read_text())
    fired = {
        case["alertname"]
        for test in cases["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == set(NAMES)


def test_every_alert_has_a_section_of_instructions() -> None:
    sections = re.findall(r"^### (Fairlead\w+)$", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)
    assert sections == NAMES
