"""Forms of answers that are derived from chat templates."""

import pytest
from server.conversation.derivation.chat_templates import CASES, EACH, JSON_CALL, Case
from tiers import tiered

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.derivation.derive import Derived, NotDerived, derive

# Arguments as JSON whose strings are not escaped.
UNESCAPED = """{ {% for key, value in f.arguments.items() %}{{ ', ' if not loop.first }}"{{ key }}": \
{% if value is string %}"{{ value }}"{% else %}{{ value | tojson }}{% endif %}{% endfor %} }"""
by_case = pytest.mark.parametrize("name", CASES)


def derived(case: Case, proofs: int = 60) -> Derived:
    found = derive(case.template, proofs)
    assert isinstance(found, Derived), found.reason
    return found


@by_case
def test_form_is_derived_and_proven(name: str) -> None:
    case = CASES[name]
    found = derived(case).entry
    assert found["call"]["text"] == case.text
    assert ("reasoning_content" in found["template"]["fields"]) == bool(case.reasoning)


@by_case
def test_derivation_is_the_same_each_time(name: str) -> None:
    assert derived(CASES[name], 6) == derived(CASES[name], 6)


@pytest.mark.parametrize("name", tiered(list(CASES), more=list(CASES)))
def test_form_reads_two_thousand_answers(name: str) -> None:
    derived(CASES[name], 2000)


def test_parts_of_the_form_are_named() -> None:
    assert derived(CASES["names in ids"]).entry["call_id"] == "functions"
    assert derived(CASES["list with ids"]).entry["call_id"] == "short"
    at_start = derived(CASES["one call at the start"]).entry["call"]
    assert at_start["at_start"] and at_start["at_most_one"]
    fields = derived(CASES["numbered objects in wrapped turns"]).entry["template"]["fields"]
    assert fields["response"] == {"open": "<|RESPONSE|>", "close": "<|END_RESPONSE|>"}
    reasoning = derived(CASES["reasoning that the prompt begins"]).entry["template"]["fields"][
        "reasoning_content"
    ]
    assert reasoning == {"open": "These are my thoughts:", "close": "[FINAL ANSWER]"}
    form = derived(CASES["tags with types"]).entry["call"]
    assert form["tag"] == '<p name="KEY" string="true">VALUE</p>\n'
    assert form["other_tag"] == '<p name="KEY" string="false">VALUE</p>\n'


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("", "prints no calls"),
        ("{{ raise_exception('no') }}", "prints no calls"),
        (f"{EACH}<call to={{{{ f.name }}}}>{JSON_CALL}</call>{{% endfor %}}", "printed twice"),
        (f"{EACH}<call>{{{{ f.name }}}}</call>{{% endfor %}}", "arguments of calls are not printed"),
        (f"{EACH}{JSON_CALL}\n{{% endfor %}}", "not proven"),
        (
            f"{EACH}<call>{{{{ f.name }}}}:{{{{ f.arguments | tojson | upper }}}}</call>{{% endfor %}}",
            "arguments",
        ),
        (f"{EACH}<call>{{{{ f.name }}}}:{UNESCAPED}</call>{{% endfor %}}", "not proven"),
    ],
)
def test_template_without_a_form_says_why(calls: str, reason: str) -> None:
    found = derive(Case(calls, "").template)
    assert isinstance(found, NotDerived)
    assert reason in found.reason


def test_template_without_tools_has_no_form() -> None:
    found = derive(ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}"))
    assert found == NotDerived("the template prints no calls")


def test_template_whose_text_changes_with_the_answer_is_not_proven() -> None:
    case = CASES["objects in marks"]
    shouting = case.template.text.replace("{{ message.content }}", "{{ message.content | upper }}")
    found = derive(ChatTemplate(shouting))
    assert isinstance(found, NotDerived)
