"""What follows from the table of kinds."""

import re
from pathlib import Path

import kopf
import llm_operator.handlers  # noqa: F401  # registers them with kopf
import pytest
import yaml
from llm_operator.kinds import CHILDREN, KINDS, WATCHED, Kind, Resource

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("resource", WATCHED, ids=lambda resource: resource.plural)
def test_kopf_has_one_handler_for_each_kind_that_is_watched(resource: Resource) -> None:
    handlers = kopf.get_default_registry()._watching.get_all_handlers()
    selectors = [handler.selector for handler in handlers if handler.selector is not None]
    assert sum(bool(selector.check(kopf.Resource(*resource))) for selector in selectors) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_role_has_the_verbs_of_each_kind_and_no_others(kind: Kind) -> None:
    rights = yaml.safe_load((ROOT / "charts/fairlead/files/operator-rights.yaml").read_text())
    resource = kind.resource
    granted = [
        verb
        for rule in rights["rules"]
        if resource.group in rule["apiGroups"] and resource.plural in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert granted == list(kind.verbs)


def test_the_documents_name_each_kind_of_children() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    table = page[page.index("## Children") :].split("\n\n")[1]
    named = set(re.findall(r"\b[A-Z]\w+[a-z]\b", " ".join(row.split("|")[1] for row in table.splitlines())))
    assert named == {kind for _, kind in CHILDREN}
