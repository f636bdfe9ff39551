"""The reasons of conditions: one list for operator, router and docs/api.md."""

import ast
import re
from pathlib import Path

import llm_operator
import pytest

from engine_server.contract.cluster.reasons import Reason, needs_person

PACKAGE = Path(llm_operator.__file__).parent
DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
# The type of a Job's condition too.
OTHER_MEANING = {"Complete"}
# An example of the reasons that the kubelet gives to pods that failed.
PASSED_ON = {"Evicted"}


@pytest.mark.parametrize("package", ["plan", "status", "control"])
def test_no_module_of_the_operator_spells_a_reason(package: str) -> None:
    reasons = {reason.value for reason in Reason} - OTHER_MEANING

    spelled = {
        (file.name, node.value)
        for file in (PACKAGE / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in reasons
    }
    given = {
        (file.name, ast.unparse(node))
        for file in (PACKAGE / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Problem", "Verdict")
        if isinstance(reason_of(node), ast.Constant)
    }

    assert spelled | given == set()


def reason_of(call: ast.Call) -> ast.expr | None:
    """Return the reason of a problem or a verdict, its first and second argument."""
    place = 1 if ast.unparse(call.func) == "Verdict" else 0
    return call.args[place] if len(call.args) > place else None


def test_the_tables_of_the_document_have_every_reason_and_no_other() -> None:
    text = DOCUMENT.read_text().partition("| reason | conditions |")[2].partition("```")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", text, flags=re.MULTILINE)

    documented = {reason for cell in cells for reason in re.findall(r"`([A-Z]\w+)`", cell)}

    assert documented - PASSED_ON == {reason.value for reason in Reason}


def test_a_reason_that_is_not_known_may_pass() -> None:
    assert needs_person("VolumeFull")
    assert not needs_person("VolumeInUse")
    assert not needs_person("Evicted")
