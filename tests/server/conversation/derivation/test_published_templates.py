"""The formats of published chat templates: each reads what its template prints, or is refused."""

import pytest
import yaml
from server.conversation.derivation.published_templates import CAPABILITIES, TABLE, limits, row, templates
from tiers import tiered

from engine_server.server.conversation.derivation.facts import probes_of
from engine_server.server.conversation.derivation.printed import print_answers
from engine_server.server.conversation.derivation.proof import prove
from engine_server.server.conversation.derivation.reasoning import derive_reasoning
from engine_server.server.conversation.find_layout import format_of_template

LIMITS = yaml.safe_load(CAPABILITIES.read_text("utf-8"))
ROWS = yaml.safe_load(TABLE.read_text("utf-8"))
SOURCES = {name: source for rows in ROWS.values() for name, source in rows.items()}
ANSWERS = 200
DEFAULT = ("trl/qwen3", "trl/glm4moe", "trl/gptoss", "trl/muse_glimmer", "axolotl/jamba", "axolotl/chatml")


def test_table_has_every_template() -> None:
    assert sorted(SOURCES) == sorted(templates())
    refused = [name for name, source in ROWS["prints calls"].items() if source.startswith("refused")]
    assert len(ROWS["prints calls"]) - len(refused) >= 60


@pytest.mark.parametrize("name", tiered(SOURCES, *DEFAULT, more=SOURCES))
def test_format_reads_what_its_template_prints(name: str) -> None:
    template = templates()[name]
    found = row(template)
    assert found.source == SOURCES[name]
    assert limits(found.facts.capabilities) == LIMITS[name]
    assert found.prints_calls == (name in ROWS["prints calls"])
    if found.prints_calls and not found.source.startswith("refused"):
        probes, _ = probes_of(template)
        printed = print_answers(probes, derive_reasoning(probes))
        prove(printed, format_of_template(template, found.facts).entry, ANSWERS)
