"""What follows from the table of conditions."""

import re
from pathlib import Path

from llm_operator.crd import root_schema
from llm_operator.status.conditions import CONDITIONS

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_documents_have_each_condition_with_its_meaning() -> None:
    page = DOCUMENT.read_text()
    table = page[page.index("| condition | True | False |") :].split("\n\n")[0].splitlines()[2:]
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row).replace("`", "").split(" | ") for row in table]
    documented = {row[0].removeprefix("| "): row[1] for row in plain}

    assert list(documented) == [row.type for row in CONDITIONS]
    for row in CONDITIONS:
        assert documented[row.type].startswith(row.meaning)


def test_kubectl_explain_names_each_condition() -> None:
    status = root_schema()["properties"]["status"]
    described = status["properties"]["conditions"]["items"]["properties"]["type"]["description"]
    assert all(f"{row.type}: {row.meaning}." in described for row in CONDITIONS)
