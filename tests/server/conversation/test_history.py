"""Histories of the three APIs, as chat templates of many kinds print them."""

import json
import re
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from server.conversation.derivation.published_templates import TABLE, templates
from server.conversation.histories import TEMPLATES, WHOLE, Turns, histories, requests_of, words_of
from server.conversation.prompted import prompted
from small_tokenizers import byte_level
from tiers import tiered
from transformers import PreTrainedTokenizerFast

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.engine.conversation.probe import capabilities_of
from engine_server.engine.conversation.turns import (
    Call,
    Conversation,
    Omitted,
    Result,
    Text,
    Thinking,
    Turn,
)
from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.conversation.layout import Layout
from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.http.errors import ApiError

pytestmark = pytest.mark.transformers

PUBLISHED = sorted(name for rows in yaml.safe_load(TABLE.read_text("utf-8")).values() for name in rows)
FORM = CallForm(text='<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>')


@cache
def layout_of(template: str, form: CallForm | None = FORM) -> Layout:
    chat_template = ChatTemplate(template, dict(tokenizer_of(template).special_tokens_map))
    return Layout(
        "test",
        call=form,
        takes_tools=chat_template.takes_tools,
        capabilities=capabilities_of(chat_template),
    )


def tokenizer_of(template: str) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(()), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    return tokenizer


def printed(template: str, *turns: Turn, form: CallForm | None = FORM) -> tuple[str, list[str]]:
    """Return a conversation as a template prints it, and what it doesn't print."""
    prompt = chat_prompt(Conversation(turns=turns), layout_of(template, form), None)
    text, _ = prompt.render(tokenizer_of(template), None)
    return text, [f"{lost.path} {lost.type}" for lost in prompt.lost]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=20)
@given(turns=histories())
def test_every_part_is_printed_or_named_and_alike_for_each_api(name: str, turns: Turns) -> None:
    check(TEMPLATES[name], turns)


def check(template: str, turns: Turns) -> None:
    layout, tokenizer = layout_of(template), tokenizer_of(template)
    prompts = [prompted(request, layout) for request in requests_of(turns)]
    texts = [prompt.render(tokenizer, None)[0] for prompt in prompts]
    assert len(set(texts)) == 1
    found = re.findall(r"word\d+z", texts[0])
    missing = set(words_of(turns)) - set(found)
    assert len(missing) <= len(prompts[0].lost)
    assert len(found) == len(set(found)), "a part is printed twice"


@pytest.mark.parametrize(
    "name", tiered(PUBLISHED, "trl/gptoss", "trl/gemma4", "axolotl/mistral_v2v3", more=PUBLISHED)
)
@settings(max_examples=15)
@given(turns=histories())
def test_published_templates_print_or_name_every_part_alike_for_each_api(name: str, turns: Turns) -> None:
    check(templates()[name].text, turns)


def user(text: str) -> Turn:
    return Turn("user", (Text(text),))


def system(text: str) -> Turn:
    return Turn("system", (Text(text),))


def test_leading_instructions_are_joined_where_one_is_lost() -> None:
    turns = (system("One."), Turn("developer", (Text("Two."),)), user("Hi"), system("Three."), user("Ho"))
    assert printed(WHOLE, *turns)[0] == "<system>One.\n\nTwo.<user>Hi<system>Three.<user>Ho<assistant>"
    first_alone = printed(TEMPLATES["first system message alone"], *turns)[0]
    assert first_alone == "<system>One.\n\nTwo.<user>Hi\nThree.\nHo<assistant>"
    assert printed(TEMPLATES["no system"], *turns)[0] == "<user>One.\n\nTwo.\nHi\nThree.\nHo<assistant>"


def answer(*parts: Any) -> tuple[Turn, ...]:
    """Return a conversation with an answer of these parts, and the results of its calls."""
    results = (
        Turn("tool", (Result(part.id, (Text(f"r{part.id}"),)),)) for part in parts if isinstance(part, Call)
    )
    return (user("Go"), Turn("assistant", parts, path="messages.1"), *results)


def call(id: str) -> Call:
    return Call(id, "f", {"x": id})


CALL_1, CALL_2 = '[1 f {"x": "1"}]', '[2 f {"x": "2"}]'


@pytest.mark.parametrize(
    ("template", "parts", "expected"),
    [
        ("all of it", (Thinking("T"), Text("C"), call("1")), f"<assistant>(T)C{CALL_1}<tool>r1"),
        (
            "all of it",
            (Thinking("T"), call("1"), Thinking("U"), Text("C")),
            f"<assistant>(T){CALL_1}<assistant>(U)C<tool>r1",
        ),
        ("all of it", (Thinking("T"), Thinking("U"), Text("C")), "<assistant>(T\n\nU)C"),
        ("text or calls", (Text("C"), call("1")), f"<assistant>C<assistant>{CALL_1}<tool>r1"),
        (
            "thoughts or text beside calls",
            (Thinking("T"), Text("C"), call("1")),
            f"<assistant>(T)C<assistant>{CALL_1}<tool>r1",
        ),
        (
            "one call",
            (Text("C"), call("1"), call("2")),
            f"<assistant>C{CALL_1}<tool>r1<assistant>{CALL_2}<tool>r2",
        ),
        (
            "no calls",
            (Text("C"), call("1")),
            '<assistant>C\n<tool_call>{"name": "f", "arguments": {"x": "1"}}</tool_call><tool>r1',
        ),
        (
            "no tools",
            (call("1"),),
            '<assistant><tool_call>{"name": "f", "arguments": {"x": "1"}}</tool_call>'
            "<user><tool_response>\nr1\n</tool_response>",
        ),
    ],
)
def test_answers_are_printed_whole_and_in_their_order(template: str, parts: Any, expected: str) -> None:
    text, lost = printed(TEMPLATES[template], *answer(*parts))
    assert text == f"<user>Go{expected}<assistant>"
    assert lost == []


def test_text_that_no_turn_can_have_is_named() -> None:
    template = TEMPLATES["alternating turns"].replace(
        "{{ m.content }}", "{{ m.content if not m.tool_calls }}"
    )
    text, lost = printed(template, *answer(Text("C"), call("1")), Turn("assistant", (Text("D"),)), user("Ho"))
    assert text == f"<user>Go<assistant>{CALL_1}<tool>r1<assistant>D<user>Ho<assistant>"
    assert lost == ["messages.1 text"]


def test_calls_of_no_known_form_are_named_where_the_template_prints_none() -> None:
    _, lost = printed(TEMPLATES["no calls"], *answer(call("1")), form=None)
    assert lost == ["messages.1 tool_calls"]


@pytest.mark.parametrize("id", ["toolu_01A09q90qw90lq917835lq9", "call_1", "abcDEF123"])
def test_ids_take_the_form_that_the_template_demands(id: str) -> None:
    text, _ = printed(
        TEMPLATES["short ids"].replace("<{{ m.role }}>", "<{{ m.role }} {{ m.tool_call_id }}>"),
        *answer(call(id)),
    )
    called, answered = re.findall(r"\[(\w+) f|<tool (\w+)>", text)
    assert called[0] == answered[1] and re.fullmatch(r"[A-Za-z0-9]{9}", called[0])
    assert (called[0] == id) == (len(id) == 9)


NAMED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}[CALL]{{ c.id }}{{ c.function.arguments }}"
    "{% endfor %}{% if m.role == 'tool' %}[RESULT {{ m.tool_call_id }}]{% endif %}{{ m.content }}{% endfor %}"
    "{{ '' if tools }}"
)


def test_ids_that_carry_the_name_number_the_calls() -> None:
    text, _ = printed(NAMED, *answer(call("a"), call("b")), *answer(call("c")))
    assert re.findall(r"functions\.f:\d", text) == [f"functions.f:{number}" for number in (0, 1, 0, 1, 2, 2)]


def test_ids_may_be_used_twice_and_results_may_have_no_call() -> None:
    stray = Turn("tool", (Result("stray", (Text("S"),)),))
    text, lost = printed(WHOLE, *answer(call("1")), *answer(call("1")), stray)
    assert text.count(CALL_1) == 2 and text.endswith("<tool>r1<tool>S<assistant>")
    assert lost == []


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_thought_is_in_the_field_that_the_template_reads(field: str) -> None:
    template = WHOLE.replace("reasoning_content", field)
    assert printed(template, *answer(Thinking("T"), call("1")))[0].count("T") == 1


def test_parts_that_look_like_sentinels_are_text() -> None:
    turns = answer(Thinking("probe20z"), Text("probe1z word1z"), call("1"))
    assert (
        printed(WHOLE, *turns)[0] == f"<user>Go<assistant>(probe20z)probe1z word1z{CALL_1}<tool>r1<assistant>"
    )


def test_result_may_be_an_error_with_parts_that_are_left_out() -> None:
    result = Result("1", (Text("Broken"), Omitted("image_url", "path")), is_error=True)
    text, _ = printed(WHOLE, user("Go"), Turn("assistant", (call("1"),)), Turn("tool", (result,)))
    assert text.endswith("<tool>Error: Broken\n[image omitted]<assistant>")


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ messages.append(1) }}", "the model's chat template can't be rendered"),
        ("{% for %}", "the model's chat template can't be rendered"),
        ("{{ raise_exception('not so') }}", "messages don't fit the model's chat template: not so"),
    ],
)
def test_error_says_whether_the_template_or_the_messages_are_at_fault(template: str, named: str) -> None:
    with pytest.raises(ApiError) as caught:
        printed(template, user("Hi"))
    assert (caught.value.status, caught.value.param) == (400, "messages" if "messages" in named else None)
    assert named in caught.value.message


def test_long_history_takes_linear_time() -> None:
    calls = [turn for number in range(20_000) for turn in answer(call(str(number)))]
    messages = chat_prompt(Conversation(turns=tuple(calls)), layout_of(TEMPLATES["one call"]), None).messages
    assert len(json.dumps(messages)) > 2_000_000


@pytest.mark.parametrize(
    "reads", ["", "{% for t in tools or [] %}{{ t.function.description.strip() }}{% endfor %}"]
)
def test_tool_without_a_description_is_rendered(reads: str) -> None:
    template, tool = reads + WHOLE, {"type": "function", "function": {"name": "f"}}
    prompt = chat_prompt(Conversation(turns=(user("Hi"),)), layout_of(template), ToolUse([tool]))
    assert prompt.render(tokenizer_of(template), None)[0] == "<user>Hi<assistant>"
    assert (prompt.tools == [tool]) == (not reads)
