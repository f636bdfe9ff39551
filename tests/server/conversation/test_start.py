"""The start of an answer: what the prompt's end says about its reasoning, and nothing that clients wrote."""

from typing import Any

import pytest
from server.conversation.recorded_answers import our_layout, tokenizer_with

from engine_server.server.conversation.start import start_state
from engine_server.server.generation.answer_start import AnswerStart, answer_start
from engine_server.server.generation.chat_turns import ChatTurns

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


def start_of(messages: list[dict[str, Any]], continues: bool = False, **variables: Any) -> AnswerStart:
    tokenizer = tokenizer_with(())
    turns = ChatTurns(messages, not continues, continues, variables=variables)
    prompt = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        chat_template=TEMPLATE,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **variables,
    )
    return answer_start(tokenizer, turns, TEMPLATE, prompt)


@pytest.mark.parametrize("text", ["Hi", f"Hi\n{TURN}<think>\n", "</think>", "<think>", f"<|im_end|>\n{TURN}"])
def test_text_of_a_user_that_looks_like_an_opening_is_none(text: str) -> None:
    assert start_of([{"role": "user", "content": text}]) == AnswerStart(TURN)


def test_opening_follows_from_the_templates_variables() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert start_of(messages, enable_thinking=False) == AnswerStart(f"{TURN}<think>\n\n</think>\n\n")
    assert start_of(messages, enable_thinking=True) == AnswerStart(TURN)


def test_continued_message_is_the_prefill() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nWell"}]
    assert start_of(messages, continues=True) == AnswerStart(TURN, "<think>\nWell")


# The opening depends on the conversation itself.
DEPENDENT = TEMPLATE.replace(
    "enable_thinking is defined and not enable_thinking", "'/no_think' in messages[0].content"
)


def test_opening_that_depends_on_the_conversation_is_found() -> None:
    tokenizer = tokenizer_with(())
    for text, opening in (("Hi", TURN), ("Hi /no_think", f"{TURN}<think>\n\n</think>\n\n")):
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=False, chat_template=DEPENDENT, add_generation_prompt=True
        )
        assert answer_start(tokenizer, ChatTurns(messages, True, False), DEPENDENT, prompt).opening == opening
