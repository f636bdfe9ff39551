"""Grammars of answers: what is demanded is held, whatever the reasoning, and calls and forms are alternatives."""

from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher
from server.conversation.recorded_answers import FORMATS, marks_of, our_layout, reading, tokenizer_with
from server.conversation.test_reader import calls_of, parse
from small_tokenizers import EOS
from structured.walks import Walker, allowed_tokens

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.conversation.grammar import AnswerGrammar, answer_grammar
from engine_server.server.conversation.start import StartState
from engine_server.server.generation.tool_use import ToolUse
from engine_server.structured.description import grammar_text
from engine_server.structured.schemas.formats import FORMATS as FORMAT_PATTERNS
from engine_server.structured.schemas.keywords import FORMATS as ENFORCED

PAST = StartState("past")
UNDECIDED = StartState("undecided")
INSIDE = StartState("inside")
FORM = StructuredOutputsParams(
    json={"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
)
VALID = '{"x": true}'
DEMANDABLE = [name for name, found in FORMATS.items() if "call" in found]


def tool(name: str, properties: dict[str, Any], **fields: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


WRITE = tool(
    "write", {"text": {"type": "string"}, "lines": {"type": "integer"}, "mode": {"enum": ["a", "w"]}}
)
STRICT = [tool("weather", {"city": {"type": "integer"}}, strict=True), tool("time", {}, strict=False)]
CALLED = ("write", {"text": "Köln\n<b>", "lines": 3, "mode": "w"})


@cache
def walker(name: str, tokens: bool) -> Walker:
    """Return the walks of a format's grammars with or without tokens for its marks."""
    layout = our_layout(name)
    found = layout.call
    reasoning = [mark.text for mark in layout.reasoning.end] if layout.reasoning else []
    tag, quote = (found.tag or "", found.quote or "") if found else ("", "")
    endings = [tag.partition("VALUE")[2], quote, *reasoning, '"', "}", "]"]
    backend = tokenizer_with(tuple(marks_of(name)) if tokens else ()).backend_tokenizer
    return Walker(backend, [text for text in endings if text])


def accepts(name: str, grammar: AnswerGrammar | None, text: str, tokens: bool) -> bool:
    """Return True if a text may be generated and may end there."""
    assert grammar is not None
    own = walker(name, tokens)
    matcher = own.compiled(grammar_text(grammar.params, {})).deep_copy()
    for token_id in own.tokenizer.encode(text, add_special_tokens=False).ids:
        if not allows(matcher, token_id):
            return False
        matcher.consume_token(token_id)
    return allows(matcher, EOS)


def allows(matcher: LLMatcher, token_id: int) -> bool:
    return token_id in allowed_tokens(matcher)


def grammar_of(
    name: str, state: StartState, use: ToolUse | None, form: StructuredOutputsParams | None, tokens: bool
) -> AnswerGrammar | None:
    return answer_grammar(our_layout(name, tokens), state, use, form)


def written_call(name: str) -> str:
    """Return the call of CALLED as a model of a format writes it."""
    found = FORMATS[name]["call"]
    arguments = '{"text": "Köln\\n<b>", "lines": 3, "mode": "w"}'
    if "tag" in found:
        number = found.get("other_tag", found["tag"]).replace("TYPE", "number")
        arguments = "".join(
            tag.replace("KEY", key).replace("VALUE", value)
            for tag, key, value in (
                (found["tag"], "text", "Köln\n<b>"),
                (number, "lines", "3"),
                (found["tag"], "mode", "w"),
            )
        )
    elif "quote" in found:
        arguments = "{text:QKöln\n<b>Q,lines:3,mode:QwQ}".replace("Q", found["quote"])
    elif "keywords" in found:
        arguments = 'text="Köln\\n<b>", lines=3, mode="w"'
    text = found["text"].replace("NAME", "write").replace("ARGUMENTS", arguments).replace("INDEX", "0")
    return str(found.get("before", "") + text + found.get("after", ""))


def final_header(name: str) -> str:
    """Return the header of text for the user in a format with channels; "" for others."""
    channels = our_layout(name).channels
    return "" if channels is None else channels.channel + channels.final + channels.body


def reasoning_marks(name: str) -> tuple[str, str]:
    reasoning = our_layout(name).reasoning
    assert reasoning is not None
    return reasoning.start[0].text, reasoning.end[0].text


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", DEMANDABLE)
def test_demanded_call_is_in_the_models_form_and_parses(name: str, tokens: bool) -> None:
    grammar = grammar_of(name, PAST, ToolUse([WRITE], "required", parallel=False), None, tokens)
    text = written_call(name)

    assert accepts(name, grammar, text, tokens)
    assert not accepts(name, grammar, text.replace("3", "three"), tokens)
    assert not accepts(name, grammar, f"Well. {text}", tokens)
    layout = our_layout(name, tokens)
    reader = reading(name, tools=[WRITE], whole=True, tokens=tokens).reader(0)
    assert calls_of(parse(reader, layout.with_calls.marks.marked(text))) == [CALLED]


# Of each format a string that has it, and one that has not.
FORMATTED = {
    "date": ("2024-02-29", "2023-02-29"),
    "time": ("12:30:59.5+01:00", "25:30:59Z"),
    "date-time": ("2024-12-31T23:59:59Z", "2024-12-31"),
    "duration": ("P1Y2M3DT4H5M6S", "P"),
    "email": ("a.b+c@example.com", "example.com"),
    "hostname": ("www.example.com", "-www"),
    "ipv4": ("192.168.0.255", "192.168.0.256"),
    "ipv6": ("2001:db8::ff00:42:8329", "1::2::3"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    "uri": ("https://example.com/a?b=c#d", "no uri"),
}


def test_every_enforced_format_is_tested() -> None:
    assert FORMATTED.keys() == ENFORCED == FORMAT_PATTERNS.keys()


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
@pytest.mark.parametrize("format", FORMATTED)
def test_string_in_a_tag_has_its_format(format: str, name: str) -> None:
    book = tool("book", {"when": {"type": "string", "format": format}})
    grammar = grammar_of(name, PAST, ToolUse([book], "required", parallel=False), None, tokens=False)
    good, bad = (
        FORMATS[name]["call"]["text"]
        .replace("NAME", "book")
        .replace("ARGUMENTS", FORMATS[name]["call"]["tag"].replace("KEY", "when").replace("VALUE", text))
        for text in FORMATTED[format]
    )
    assert accepts(name, grammar, good, tokens=False)
    assert not accepts(name, grammar, bad, tokens=False)


@pytest.mark.parametrize("name", DEMANDABLE)
def test_demanded_call_of_a_tool_without_a_usable_schema_has_any_arguments(name: str) -> None:
    use = ToolUse([WRITE], "required", parallel=False, paths=["tools.0"], schemas={})
    grammar = grammar_of(name, PAST, use, None, tokens=False)
    text = written_call(name).replace("3", "true")

    assert accepts(name, grammar, text, tokens=False)
    assert not accepts(name, grammar, text.replace("write", "erase"), tokens=False)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", DEMANDABLE)
def test_answer_with_tools_and_a_form_is_a_call_or_the_form(name: str, tokens: bool) -> None:
    grammar = grammar_of(name, PAST, ToolUse([WRITE]), FORM, tokens)
    header = final_header(name)

    assert accepts(name, grammar, written_call(name), tokens)
    assert accepts(name, grammar, header + VALID, tokens)
    assert not accepts(name, grammar, header + "Well.", tokens)
    assert not accepts(name, grammar, header + '{"x": 3}', tokens)


@pytest.mark.parametrize("name", [name for name in FORMATS if our_layout(name).reasoning])
def test_form_follows_reasoning_that_is_text(name: str) -> None:
    start, end = reasoning_marks(name)
    direct = final_header(name)
    after = f"<|start|>assistant{direct}" if direct else "\n\n"
    undecided = grammar_of(name, UNDECIDED, None, FORM, tokens=False)
    inside = grammar_of(name, INSIDE, None, FORM, tokens=False)

    assert accepts(name, undecided, f"{start}Well, {VALID}{end}{after}{VALID}", tokens=False)
    assert accepts(name, undecided, direct + VALID, tokens=False)
    assert accepts(name, inside, f"Well.{end}{after}{VALID}", tokens=False)
    assert not accepts(name, undecided, "Well.", tokens=False)
    assert not accepts(name, undecided, f"{start}Well.", tokens=False)
    assert not accepts(name, inside, VALID, tokens=False)


@pytest.mark.parametrize(
    "name",
    [name for name in FORMATS if (marks := our_layout(name, tokens=True).reasoning) and marks.exact],
)
def test_form_begins_after_reasoning_whose_marks_are_tokens(name: str) -> None:
    start, end = reasoning_marks(name)
    for state, reasoning in ((UNDECIDED, f"{start}Well.{end}"), (INSIDE, f"Well.{end}")):
        grammar = grammar_of(name, state, None, FORM, tokens=True)
        assert accepts(name, grammar, f"\n\n{VALID}", tokens=True)
        assert not accepts(name, grammar, reasoning + VALID, tokens=True)
        assert not accepts(name, grammar, "Well.", tokens=True)


def test_demanded_calls_of_a_format_with_numbers_are_counted() -> None:
    grammar = grammar_of("cohere", PAST, ToolUse([WRITE], "required"), None, tokens=True)
    before, end = "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"
    calls = [
        f'{{"tool_call_id": "{index}", "tool_name": "write", "parameters": {{"text": "", "lines": 3, "mode": "a"}}}}'
        for index in range(11)
    ]
    assert accepts("cohere", grammar, before + ",\n    ".join(calls) + end, tokens=True)


def test_form_alone_is_the_clients_own_grammar() -> None:
    grammar = grammar_of("hermes", PAST, None, FORM, tokens=True)
    assert grammar and grammar.params is FORM


# The marks of headers are tokens of every tokenizer for them.
@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        (name, tokens)
        for name in DEMANDABLE
        for tokens in (False, True)
        if tokens or not our_layout(name).channels
    ],
)
def test_beginning_of_a_call_starts_one_of_a_strict_tool(name: str, tokens: bool) -> None:
    plain, before = "Hello.", "Hello. "
    channels = our_layout(name).channels
    if channels is not None:
        plain = f"{final_header(name)}Hello."
        before = f"{plain}{channels.end[0]}<|start|>assistant"
    elif FORMATS[name]["call"].get("at_start"):
        before = ""
    use = ToolUse([{"function": {**WRITE["function"], "strict": True}}])
    grammar = grammar_of(name, PAST, use, None, tokens)
    text = written_call(name)

    assert accepts(name, grammar, plain, tokens)
    assert accepts(name, grammar, before + text, tokens)
    assert not accepts(name, grammar, before + text.replace("3", "three"), tokens)


def test_quoted_call_within_reasoning_that_is_text_is_no_call() -> None:
    use = ToolUse([{"function": {**WRITE["function"], "strict": True}}])
    grammar = grammar_of("hermes", UNDECIDED, use, None, tokens=False)
    assert accepts("hermes", grammar, "<think>A <tool_call>\n{ is a call.</think>Hello.", tokens=False)
    assert accepts("hermes", grammar, "Hello.", tokens=False)
