"""Chat templates of several kinds, each in few words, and what their calls look like."""

from dataclasses import dataclass

from engine_server.engine.conversation.chat_template import ChatTemplate

TURNS = """{%- for message in messages %}
{%- if message.role == 'assistant' %}<|start|>assistant
REASONING{{ OPEN }}{{ message.content }}{{ CLOSE }}CALLS<|end|>
{%- else %}<|start|>{{ message.role }}
{{ message.content }}<|end|>
{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant
OPENING{% endif %}{% if tools %}{% endif %}"""
THOUGHTS = (
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
)
EACH = "{% for call in message.tool_calls %}{% set f = call.function %}"


@dataclass(frozen=True)
class Case:
    """A template, and calls as its form has them."""

    calls: str
    text: str
    reasoning: str = THOUGHTS
    opening: str = ""
    wrapper: tuple[str, str] = ("", "")
    # The format of ours that reads its answers.
    written: str | None = None

    @property
    def template(self) -> ChatTemplate:
        parts = {
            "CALLS": f"{{% if message.tool_calls %}}{self.calls}{{% endif %}}",
            "REASONING": self.reasoning,
            "OPENING": self.opening,
            "{{ OPEN }}": f"{{% if message.content %}}{self.wrapper[0]}{{% endif %}}",
            "{{ CLOSE }}": f"{{% if message.content %}}{self.wrapper[1]}{{% endif %}}",
        }
        text = TURNS
        for name, part in parts.items():
            text = text.replace(name, part)
        return ChatTemplate(text, {"eos_token": "</s>"})


JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
TAGS = "{% for key, value in f.arguments.items() %}TAG{% endfor %}"
VALUE = "{{ value if value is string else value | tojson }}"
IS_TEXT = "{{ 'true' if value is string else 'false' }}"
CASES = {
    "objects in marks": Case(
        f"{EACH}\n<tool_call>\n{JSON_CALL}\n</tool_call>{{% endfor %}}",
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
        written="hermes",
    ),
    "list of objects": Case(
        f"<calls>[{EACH}{JSON_CALL}{{{{ ', ' if not loop.last }}}}{{% endfor %}}]</calls>",
        '{"name": "NAME", "arguments": ARGUMENTS}',
    ),
    "list with ids": Case(
        "[CALLS] [{% for call in message.tool_calls %}"
        "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{% set f = call.function %}"
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}'
        "{{ ', ' if not loop.last }}{% endfor %}]",
        '{"name": "NAME", "arguments": ARGUMENTS, "id": "IDENTIFIER"}',
    ),
    "numbered objects in wrapped turns": Case(
        f'<|ACTION|>[\n    {EACH}{{"id": "{{{{ loop.index0 }}}}", "tool": "{{{{ f.name }}}}", "parameters": '
        "{{ f.arguments | tojson }}}{{ ',\n    ' if not loop.last }}{% endfor %}\n]<|END_ACTION|>",
        '{"id": "INDEX", "tool": "NAME", "parameters": ARGUMENTS}',
        wrapper=("<|RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "names as keys": Case(
        f'<|prefix|>[{EACH}{{"{{{{ f.name }}}}": {{{{ f.arguments | tojson }}}}}}'
        "{{ ', ' if not loop.last }}{% endfor %}]<|suffix|>",
        '{"NAME": ARGUMENTS}',
    ),
    "names before JSON": Case(
        f"{EACH}[CALLS]{{{{ f.name }}}}[ARGS]{{{{ f.arguments | tojson }}}}{{% endfor %}}",
        "[CALLS]NAME[ARGS]ARGUMENTS",
    ),
    "arguments as text": Case(
        f"<|calls|>{EACH}<|call|>{{{{ f.name }}}}<|sep|>```json\n{{{{ '' + f.arguments }}}}\n```<|end_call|>"
        "{{ '\n' if not loop.last }}{% endfor %}<|end_calls|>",
        "<|call|>NAME<|sep|>```json\nARGUMENTS\n```<|end_call|>",
    ),
    "names in ids": Case(
        "<|section|>{% for call in message.tool_calls %}<|call|>{{ call.id }}<|args|>"
        "{{ call.function.arguments | tojson }}<|end_call|>{% endfor %}<|end_section|>",
        "<|call|>functions.NAME:INDEX<|args|>ARGUMENTS<|end_call|>",
    ),
    "tags": Case(
        f"{EACH}\n<tool_call>\n<function={{{{ f.name }}}}>\n"
        + TAGS.replace("TAG", f"<parameter={{{{ key }}}}>\n{VALUE}\n</parameter>\n")
        + "</function>\n</tool_call>{% endfor %}",
        "<tool_call>\n<function=NAME>\nARGUMENTS</function>\n</tool_call>",
        written="qwen3_coder",
    ),
    "tags with types": Case(
        f'\n<calls>{EACH}\n<invoke name="{{{{ f.name }}}}">\n'
        + TAGS.replace("TAG", f'<p name="{{{{ key }}}}" string="{IS_TEXT}">{VALUE}</p>\n')
        + "</invoke>{% endfor %}\n</calls>",
        '<invoke name="NAME">\nARGUMENTS</invoke>',
    ),
    "tags with Python's values": Case(
        f"{EACH}<call>{{{{ f.name }}}}\n"
        + TAGS.replace("TAG", "<key>{{ key }}</key><value>{{ value }}</value>\n")
        + "</call>{% endfor %}",
        "<call>NAME\nARGUMENTS</call>",
    ),
    "one call at the start": Case(
        "{% if message.tool_calls | length > 1 or message.content %}{{ raise_exception('one') }}{% endif %}"
        f"{{% set f = message.tool_calls[0].function %}}{JSON_CALL}",
        '{"name": "NAME", "arguments": ARGUMENTS}',
        reasoning="",
    ),
    "reasoning that the prompt begins": Case(
        f"{EACH}<tool_call>{JSON_CALL}</tool_call>{{% endfor %}}",
        '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>',
        reasoning="{% if message.reasoning_content %}{{ message.reasoning_content }}\n[FINAL ANSWER]\n{% endif %}",
        opening="These are my thoughts:\n",
        written="hermes",
    ),
    "reasoning left empty": Case(
        f"{EACH}<tool_call>{JSON_CALL}</tool_call>{{% endfor %}}",
        '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>',
        reasoning="<think>\n{{ message.reasoning_content }}\n</think>\n\n",
        opening="<think>\n",
        written="hermes",
    ),
}
