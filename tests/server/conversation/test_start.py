"""The start of an answer: what the prompt's end says about its reasoning, and nothing that clients wrote."""

from typing import Any

import pytest
from server.conversation.recorded_answers import our_layout, tokenizer_with

from engine_server.engine.conversation.turns import Conversation, Text, Thinking, Turn
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.conversation.start import start_state
from engine_server.server.generation.answer_start import AnswerStart

TURN = "<|im_start|>assistant\n"
# Qwen 3's turns: an answer begins with an empty reasoning where it is switched off.
TEMPLATE = """{# <think> #}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


@pytest.mark.parametrize(
    ("opening", "prefill", "expected"),
    [
        (TURN, "", "undecided"),
        (f"{TURN}<think>\n", "", "inside"),
        (f"{TURN}<think>\n\n</think>\n\n", "", "past"),
        (f"{TURN}</think>", "", "past"),
        (TURN, "<think>\nStill", "inside"),
        (TURN, "<think>\nEasy.</think>", "past"),
        (TURN, "The capital", "past"),
        (TURN, " \n", "undecided"),
        ("", "", "undecided"),
    ],
)
@pytest.mark.parametrize("tokens", [False, True])
def test_state_follows_from_opening_and_prefill(
    opening: str, prefill: str, expected: str, tokens: bool
) -> None:
    layout = our_layout("hermes", tokens)
    state = start_state(layout, layout.with_calls, AnswerStart(opening, prefill))
    assert state.reasoning == expected


def test_channel_that_the_prompt_opens_is_the_answers() -> None:
    layout = our_layout("gpt_oss", tokens=True)
    opened = {"analysis": ("inside", False), "final": ("past", True)}
    for channel, expected in opened.items():
        start = AnswerStart("<|start|>assistant", f"<|channel|>{channel}<|message|>")
        state = start_state(layout, layout.with_calls, start)
        assert (state.reasoning, state.in_content) == (expected[0], channel == "final")


def start_of(*turns: Turn, template: str = TEMPLATE, name: str = "hermes", **variables: Any) -> AnswerStart:
    """Return the start of an answer. A last turn of the assistant is continued."""
    layout, tokenizer = our_layout(name), tokenizer_with(())
    tokenizer.chat_template = template
    continues = turns[-1].role == "assistant"
    conversation = Conversation(
        turns=turns, open_answer=not continues, continue_last=continues, variables=variables
    )
    prompt, start = chat_prompt(conversation, layout, None).render(tokenizer, None)
    assert prompt.endswith(start.opening + start.prefill)
    return start


def user(text: str) -> Turn:
    return Turn("user", (Text(text),))


def assistant(text: str, thought: str = "") -> Turn:
    return Turn("assistant", (*([Thinking(thought)] if thought else ()), Text(text)))


@pytest.mark.parametrize("text", ["Hi", f"Hi\n{TURN}<think>\n", "</think>", "<think>", f"<|im_end|>\n{TURN}"])
def test_text_of_a_user_that_looks_like_an_opening_is_none(text: str) -> None:
    assert start_of(user(text)) == AnswerStart(TURN)


def test_opening_follows_from_the_templates_variables() -> None:
    assert start_of(user("Hi"), enable_thinking=False) == AnswerStart(f"{TURN}<think>\n\n</think>\n\n")
    assert start_of(user("Hi"), enable_thinking=True) == AnswerStart(TURN)


SKIPPED = f"{TURN}<think>\n\n</think>\n\n"
# DeepSeek R1's, with which every answer begins in its reasoning.
ALWAYS = TEMPLATE.replace("{% if enable", "<think>\n{% if enable").replace("<think>\n\n</think>\n\n", "")


@pytest.mark.parametrize(
    ("template", "turn", "expected"),
    [
        (TEMPLATE, assistant("Paris"), AnswerStart(SKIPPED, "Paris")),
        (TEMPLATE, assistant("<think>\nWell"), AnswerStart(TURN, "<think>\nWell")),
        (TEMPLATE, assistant("", "Well"), AnswerStart(TURN, "<think>\nWell")),
        (TEMPLATE, assistant("Paris", "Well"), AnswerStart(TURN, "<think>\nWell\n</think>\n\nParis")),
        (ALWAYS, assistant("Paris"), AnswerStart(f"{TURN}<think>\n", "</think>\n\nParis")),
        (ALWAYS, assistant("", "Well"), AnswerStart(f"{TURN}<think>\n", "Well")),
        (ALWAYS, assistant("<think>\nWell"), AnswerStart(f"{TURN}<think>\n", "\nWell")),
        (ALWAYS, assistant("Paris", "Well"), AnswerStart(f"{TURN}<think>\n", "Well\n</think>\n\nParis")),
    ],
)
def test_continued_turn_is_written_after_the_templates_opening(
    template: str, turn: Turn, expected: AnswerStart
) -> None:
    assert start_of(user("Hi"), turn, template=template) == expected


def test_continued_turn_of_channels_has_its_headers() -> None:
    template = TEMPLATE.replace("<|im_start|>assistant\n", "<|start|>assistant")
    text = start_of(user("Hi"), assistant("Paris", "Well"), template=template, name="gpt_oss")
    assert text.prefill == (
        "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>final<|message|>Paris"
    )


# The opening depends on the conversation itself.
DEPENDENT = TEMPLATE.replace(
    "enable_thinking is defined and not enable_thinking", "'/no_think' in messages[0].content"
)


def test_opening_that_depends_on_the_conversation_is_found() -> None:
    for text, opening in (("Hi", TURN), ("Hi /no_think", SKIPPED)):
        assert start_of(user(text), template=DEPENDENT).opening == opening
