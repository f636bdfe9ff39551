"""Header fields between router and engine are read in one place: no other module names one of them to look it up."""

import ast
from pathlib import Path

import llm_local
import llm_operator
import pytest

import engine_server
from engine_server.contract.wire.headers import ALL_HEADERS

PACKAGES = [Path(package.__path__[0]) for package in (engine_server, llm_operator, llm_local)]
READERS = PACKAGES[0] / "contract" / "wire"
NAMES = {name.lower() for name in ALL_HEADERS}
HEADERS = "engine_server.contract.wire.headers"
# What of it is no name of ours.
OTHERS = {"ALL_HEADERS", "REQUEST_TIMEOUT"}
# Methods by which a mapping is read.
LOOKUPS = {"get", "getlist", "pop"}


def header_reads(tree: ast.AST) -> list[int]:
    """Return the lines that write a name of ours, or look up the name of a class of fields."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if text.lower() in NAMES:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == HEADERS:
            lines += [node.lineno for alias in node.names if alias.name not in OTHERS]
        keys: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
            keys = node.args[:1]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys = [node.slice]
        lines += [key.lineno for key in keys if isinstance(key, ast.Attribute) and is_name_of_ours(key)]
    return lines


def is_name_of_ours(node: ast.Attribute) -> bool:
    return node.attr == "NAME" and not (isinstance(node.value, ast.Name) and node.value.id == "TimeLeft")


@pytest.mark.parametrize(
    "line",
    [
        'fields.get(b"fairlead-load")',
        'headers["Fairlead-Model"]',
        "headers.get(Fingerprint.NAME)",
        "headers[Fingerprint.NAME]",
        "from engine_server.contract.wire.headers import CALLER",
    ],
)
def test_a_read_is_found(line):
    assert header_reads(ast.parse(line)) == [1]


def test_no_module_outside_the_wire_reads_a_header_of_ours():
    files = [file for root in PACKAGES for file in sorted(root.rglob("*.py")) if READERS not in file.parents]
    assert len(files) > 300
    found = {
        str(file.relative_to(READERS.parents[2])): header_reads(ast.parse(file.read_text())) for file in files
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
