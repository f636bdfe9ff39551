"""A pytest plugin that ends a run with the tests that failed and then passed, and the logs of both attempts."""

from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed = {report.nodeid: report for report in terminalreporter.stats.get("passed", ())}
    flaky = [report for report in terminalreporter.stats.get("rerun", ()) if report.nodeid in passed]
    for failure in flaky:
        terminalreporter.section(f"flaky: {failure.nodeid}")
        show(terminalreporter, "failed", failure)
        show(terminalreporter, "passed", passed[failure.nodeid])
    for failure in flaky:
        terminalreporter.write_line(f"flaky: {failure.nodeid} failed, and passed when it ran once more")


def show(terminalreporter: Any, outcome: str, report: pytest.TestReport) -> None:
    terminalreporter.write_line(f"--- {outcome}")
    if report.longreprtext:
        terminalreporter.write_line(report.longreprtext)
    for title, text in report.sections:
        terminalreporter.write_line(f"{title}\n{text}")
