"""The process that renders a chat template, whatever the template does."""

import os
import signal

import pytest
from server.conversation.derivation.chat_templates import CASES
from tiers import tiered

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.derivation.derive import Derived, NotDerived
from engine_server.server.conversation.derivation.facts import TemplateFacts, facts_of
from engine_server.server.conversation.derivation.process import TemplateProcess

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"
CALLS = "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"


def found(template: ChatTemplate, cpu_seconds: int = 30) -> TemplateFacts:
    with TemplateProcess(cpu_seconds) as process:
        return process.facts(template)


def test_process_finds_the_facts_that_are_found_here() -> None:
    template = CASES["tags with types"].template
    facts = found(template)
    assert isinstance(facts.form, Derived)
    assert facts == facts_of(template)


DOUBLES = "{% set ns = namespace(x='x') %}{% for i in range(22) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"
# Each a template's text, its CPU seconds, and whether it ends the process.
HOSTILE = [
    (LOOPS, 1, True),
    ("{{ 'x' * 10**12 }}", 30, False),
    (DOUBLES, 30, False),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 30, False),
    ("{{ raise_exception('no') }}", 30, False),
    ("{% broken", 30, False),
]


@pytest.mark.parametrize(("text", "cpu_seconds", "ended"), tiered(HOSTILE, HOSTILE[0], more=HOSTILE))
def test_template_can_not_keep_the_facts_from_being_found(
    text: str, cpu_seconds: int, ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    facts = found(ChatTemplate(CALLS + text), cpu_seconds)
    assert facts.written is None
    assert isinstance(facts.form, NotDerived)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * ended


def test_facts_of_a_process_that_was_killed_have_the_reason() -> None:
    with TemplateProcess() as process:
        os.kill(process.pid, signal.SIGKILL)
        facts = process.facts(ChatTemplate(CALLS))
    assert facts == TemplateFacts(
        form=NotDerived("the process that rendered the chat template ended with status -9")
    )


def test_process_ends_without_a_template() -> None:
    with TemplateProcess() as process:
        pid = process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
