"""The places from which chat templates read tools."""

from typing import Any

import pytest

from engine_server.engine.conversation.chat_template import ChatTemplate

MESSAGES = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
# Of Phi-4-mini, in short.
IN_SYSTEM = (
    f"{MESSAGES}{{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}}"
    "<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{% endfor %}"
)
# Of SmolLM3, in short.
IN_VARIABLE = (
    "{% if xml_tools or python_tools %}{% for tool in xml_tools[:] %}{{ tool | tojson }}{% endfor %}{% endif %}"
    f"{MESSAGES}{{% endfor %}}"
)
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
USER = {"role": "user", "content": "Hi"}


def test_tools_are_in_the_system_message_of_a_template_that_reads_them_there() -> None:
    template = ChatTemplate(IN_SYSTEM)
    tools = '<|tool|>[{"name": "now"}]<|/tool|>'
    assert template.takes_tools
    assert (
        template.render([{"role": "system", "content": "Hm."}, USER], [NOW])
        == f"<|system|>Hm.{tools}<|user|>Hi"
    )
    assert template.render([USER], [NOW]) == f"<|system|>{tools}<|user|>Hi"
    assert template.render([USER], None) == "<|user|>Hi"


def test_tools_are_in_the_variable_that_a_template_reads() -> None:
    template = ChatTemplate(IN_VARIABLE)
    definition = '{"type": "function", "function": {"name": "now"}}'
    assert template.takes_tools
    assert template.render([USER], [NOW]) == f"{definition}<|user|>Hi"
    assert template.render([USER], None) == "<|user|>Hi"
    assert template.render([USER], [NOW], variables={"xml_tools": ["mine"]}) == '"mine"<|user|>Hi'


@pytest.mark.parametrize(
    "text", [f"{MESSAGES}{{% endfor %}}", "{% for message in messages %}tools{% endfor %}"]
)
def test_template_without_a_place_takes_no_tools(text: str) -> None:
    assert not ChatTemplate(text).takes_tools
