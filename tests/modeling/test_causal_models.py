"""Every causal language model of transformers equals its `generate`, or is refused by name: docs/models.md's table."""

import causal_models
import pytest
import transformers
from causal_models import EQUAL, REFUSED, WITHOUT_WINDOWS, Case, Finding
from tiers import tiered

# Equal, refused beyond a window, and refused for their layers, their attention, their positions and their parts.
QUICK = [
    Case(name)
    for name in ("gemma3_text", "modernbert-decoder", "phimoe", "mamba", "cpmant", "bart", "musicgen")
]


def check(finding: Finding) -> None:
    """Check that nothing differs in silence, and that a refusal names the class."""
    assert finding.result in (EQUAL, WITHOUT_WINDOWS, REFUSED), finding
    assert finding.result == EQUAL or finding.case.model in finding.reason, finding


def test_table_lists_every_class_of_the_installed_transformers() -> None:
    version, findings = causal_models.read_table()
    outdated = f"run python {causal_models.__file__}"
    assert version == transformers.__version__, outdated
    assert [finding.case for finding in findings] == causal_models.list_cases(), outdated
    assert causal_models.table(findings) in causal_models.PAGE.read_text(), outdated  # its counts, too


@pytest.mark.parametrize(
    "case", tiered(QUICK, Case("gemma3_text"), Case("mamba"), more=QUICK, ids=lambda case: case.model_type)
)
def test_model_equals_generate_or_is_refused_as_the_table_says(case: Case) -> None:
    _, findings = causal_models.read_table()
    found = causal_models.survey(case)
    check(found)
    assert [found.result] == [finding.result for finding in findings if finding.case == case]


@pytest.mark.thorough
def test_every_model_equals_generate_or_is_refused_as_the_table_says() -> None:
    _, findings = causal_models.read_table()
    found = list(causal_models.survey_in_processes(causal_models.list_cases()))
    for finding in found:
        check(finding)
    assert {one.case: one.result for one in found} == {one.case: one.result for one in findings}
