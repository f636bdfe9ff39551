"""What the programs show to users, and what the passes replace, compared with text files beside the tests.

After an intended change, `UPDATE_SNAPSHOTS=1 pytest -m '' tests/*/test_snapshots.py tests/*/test_recorded_streams.py
tests/*/test_*pass_reports.py` writes the files, with TRITON_INTERPRET=1 those of Triton too; `git diff` shows what
users will see differently.
"""

import argparse
import contextlib
import difflib
import io
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from engine_server import cli
from engine_server.contract.base.command_line import help_of as help_of_flag

# What differs between two starts of a program, or tells where its code lies, by the word that stands for it.
VARIABLE = {
    "TIME": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}",
    "127.0.0.1:PORT": r"127\.0\.0\.1:\d+",
    "SECONDS s": r"\d+\.\d+ s\b",
    "ID": r"\b[0-9a-f]{32}\b",
}


def assert_unchanged(file: Path, text: str) -> None:
    """Compare a text with the snapshot in a file, or write the file."""
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    before = file.read_text() if file.exists() else ""
    if text != before:
        difference = difflib.unified_diff(
            before.splitlines(), text.splitlines(), str(file), "now", lineterm=""
        )
        pytest.fail("\n".join((*difference, (__doc__ or "").partition("\n\n")[2])), pytrace=False)


def help_of(*words: str) -> str:
    """Return what `fairlead WORDS --help` shows; the flags are listed alike under every version of Python."""
    shown: list[argparse.ArgumentParser] = []
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(argparse.ArgumentParser, "print_help", lambda parser, file=None: shown.append(parser))
        with contextlib.redirect_stdout(printed):
            cli.main([*words, "--help"])
    return "".join(map(describe_parser, shown)) or printed.getvalue()


def describe_parser(parser: argparse.ArgumentParser) -> str:
    lines = [f"{parser.prog}: {parser.description}", *([f"usage: {parser.usage}"] if parser.usage else [])]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        for action in actions:
            lines += [f"\n{group.title}:"] if action is actions[0] else []
            lines += describe_action(action)
    return "\n".join(lines) + "\n"


def describe_action(action: argparse.Action) -> list[str]:
    """Return a line with the flag's names and values, and one with its help if it has any."""
    words = [", ".join(action.option_strings) or action.dest]
    if action.nargs != 0:
        words.append(str(action.metavar or action.dest.upper()))
    words += [f"nargs={action.nargs}"] if action.nargs else []
    words += ["required"] if action.required else []
    words += [f"choices={','.join(map(str, action.choices))}"] if action.choices else []
    if action.default not in (None, argparse.SUPPRESS):
        words.append(f"default={action.default!r}")
    lines = ["  " + " ".join(words)]
    if action.help:
        lines.append("      " + help_of_flag(action) % vars(action))
    return lines


def describe_metrics(families: Iterable[Metric], names: Callable[[Metric], Iterable[str]]) -> str:
    """Return a line for each metric with its type and the names of its labels, which `names` returns."""
    lines = [
        f"{family.name} {family.type} {{{', '.join(sorted(names(family)))}}}".removesuffix(" {}")
        for family in families
        # Those of Python itself differ between interpreters, and times of creation follow from the other metrics.
        if not family.name.startswith("python_") and not family.name.endswith("_created")
    ]
    return "\n".join(sorted(lines)) + "\n"


def describe_registry(registry: CollectorRegistry) -> str:
    """Return the metrics of a registry, those without series too."""

    def names(family: Metric) -> Iterable[str]:
        collector = registry._names_to_collectors.get(family.name)
        found: Iterable[str] = getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ())
        return found

    return describe_metrics(registry.collect(), names)


def labels_of_samples(family: Metric) -> set[str]:
    """Return the names of the labels of a metric that was read from a page, which has series."""
    assert family.samples, f"{family.name} has no series"
    return {name for sample in family.samples for name in sample.labels} - {"le"}


def without_variables(lines: Iterable[str]) -> str:
    """Return lines of a log with their times, ports, durations and ids replaced."""
    text = "\n".join(lines) + "\n"
    for word, pattern in VARIABLE.items():
        text = re.sub(pattern, word, text)
    return text
