"""Pictures in histories, as chat templates of several kinds print them."""

from typing import Any

import pytest
from server.conversation.histories import ALTERNATING, TEMPLATES, WHOLE

from engine_server.engine.conversation.capabilities import (
    ALL_CAPABILITIES,
    Capabilities,
    ShownPictures,
)
from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.engine.conversation.messages import template_messages
from engine_server.engine.conversation.probe import capabilities_of, shown_pictures
from engine_server.engine.conversation.turns import Call, ImagePart, Omitted, Result, Text, Turn
from engine_server.engine.input.sent_picture import SentPicture

pytestmark = pytest.mark.transformers

IMAGE_OR_TEXT = "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
PARTS = "{% for part in m.content %}" + IMAGE_OR_TEXT + "{% endfor %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"


def template(content: str, of_tools: str) -> str:
    """Return a template. of_tools: the content of tools' results."""
    return (
        TOOLS
        + "{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}"
        + of_tools
        + "{% else %}"
        + content
        + "{% endif %}"
        + CALLS
        + "{% endfor %}"
    )


@pytest.mark.parametrize(
    "text, users, results",
    [
        (template(EITHER, EITHER), True, "in"),
        (template(PARTS, PARTS), True, "in"),
        (template(EITHER, "{{ m.content }}"), True, "after"),
        (template(EITHER, "{{ m.content | tojson }}"), True, "after"),
        (template("{{ m.content }}", "{{ m.content }}"), False, None),
        (WHOLE, False, None),
        ("{% for m in messages %}" + EITHER + "{% endfor %}", True, "after"),
        (ALTERNATING + template(EITHER, "{{ m.content }}"), True, None),
        ("{{ raise_exception('no') }}", False, None),
    ],
)
def test_template_shows_in_which_turns_it_prints_pictures(
    text: str, users: bool, results: str | None
) -> None:
    chat_template = ChatTemplate(text)
    shown = shown_pictures(chat_template, capabilities_of(chat_template))
    assert (shown.users, shown.results) == (users, results)


def picture(path: str) -> ImagePart:
    return ImagePart("image_url", SentPicture("", is_url=False), path)


def messages_of(
    *turns: Turn, capabilities: Capabilities = ALL_CAPABILITIES, results: Any = "in"
) -> tuple[list[dict[str, Any]], list[str]]:
    messages, _, pictures = template_messages(turns, capabilities, None, (), ShownPictures(results=results))
    return messages, [one.path for one in pictures]


IMAGE = {"type": "image"}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def result(id: str, *parts: Text | Omitted | ImagePart, is_error: bool = False) -> Turn:
    return Turn("tool", (Result(id, parts, is_error),))


CALLED = Turn("assistant", (Call("1", "look", {}), Call("2", "look", {})))


def test_picture_is_a_part_in_its_place() -> None:
    messages, paths = messages_of(
        Turn("user", (Text("a"), Text("b"), picture("1"), picture("2"), Omitted("file"), Text("c"))),
        Turn("user", (Text("d"),)),
    )
    assert messages == [
        {"role": "user", "content": [text("a\nb"), IMAGE, IMAGE, text("[file omitted]\nc")]},
        {"role": "user", "content": "d"},
    ]
    assert paths == ["1", "2"]


def test_result_has_its_picture_where_the_template_prints_it() -> None:
    messages, paths = messages_of(
        CALLED, result("1", Text("Taken."), picture("1")), result("2", picture("2"), is_error=True)
    )
    assert [message["content"] for message in messages[1:]] == [
        [text("Taken."), IMAGE],
        [text("Error:"), IMAGE],
    ]
    assert paths == ["1", "2"]


def test_pictures_of_results_follow_the_last_of_them_where_the_template_prints_none() -> None:
    messages, paths = messages_of(
        CALLED,
        result("1", Text("Taken."), picture("1")),
        result("2", picture("2"), Text("too")),
        Turn("assistant", (Text("Now?"),)),
        Turn("user", (picture("3"),)),
        results="after",
    )
    assert [(message["role"], message["content"]) for message in messages[1:]] == [
        ("tool", "Taken.\n[image below]"),
        ("tool", "[image below]\ntoo"),
        ("user", [IMAGE, IMAGE]),
        ("assistant", "Now?"),
        ("user", [IMAGE]),
    ]
    assert paths == ["1", "2", "3"]


def test_pictures_of_results_are_notes_and_named_where_no_turn_may_have_them() -> None:
    turns = (CALLED, result("1", picture("1")), result("2", Text("b")))
    messages, lost, pictures = template_messages(
        turns, ALL_CAPABILITIES, None, (), ShownPictures(results=None)
    )
    assert [message["content"] for message in messages[1:]] == ["[image omitted]", "b"]
    assert lost == [("1", "image_url")]
    assert pictures == []


def test_pictures_of_results_and_the_next_turn_are_one_turn_where_turns_alternate() -> None:
    messages, _ = messages_of(
        CALLED,
        result("1", picture("1")),
        Turn("user", (Text("What is it?"),)),
        capabilities=Capabilities(user_turns=False),
        results="after",
    )
    assert messages[-1] == {"role": "user", "content": [IMAGE, text("What is it?")]}


def test_pictures_follow_all_results_where_a_template_prints_single_calls() -> None:
    messages, paths = messages_of(
        CALLED,
        result("1", picture("1")),
        result("2", picture("2")),
        capabilities=Capabilities(several_calls=False),
        results="after",
    )
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant", "tool", "user"]
    assert paths == ["1", "2"]


def test_results_in_words_keep_their_pictures() -> None:
    messages, paths = messages_of(
        CALLED,
        result("1", Text("Taken."), picture("1")),
        result("2", Text("")),
        capabilities=Capabilities(results=False),
        results="after",
    )
    assert [message["content"] for message in messages if message["role"] == "user"] == [
        [text("<tool_response>\nTaken."), IMAGE, text("</tool_response>")],
        "<tool_response>\n\n</tool_response>",
    ]
    assert paths == ["1"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_text_show_no_pictures(name: str) -> None:
    chat_template = ChatTemplate(TEMPLATES[name])
    assert not shown_pictures(chat_template, capabilities_of(chat_template)).users
