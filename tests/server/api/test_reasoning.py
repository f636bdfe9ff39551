"""Reasoning in /v1/chat/completions, with a chat template that opens it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer, serving

TEMPLATE = """{# <think> <tool_call> #}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""
REQUEST: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}
PATH = "/v1/chat/completions"


THOUGHT = "France's capital is Paris."
ANSWER = "Paris, of course."


@pytest.fixture(scope="module")
def reasoning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    template: Path = tmp_path_factory.mktemp("templates") / "think.jinja"
    template.write_text(TEMPLATE)
    with serving(f"--chat-template={template}") as server, server.saying(f"{THOUGHT}\n</think>\n\n{ANSWER}"):
        yield server


def test_answer_begins_with_reasoning_where_the_prompt_opens_it(reasoning_server: LocalServer) -> None:
    answer = reasoning_server.post(PATH, REQUEST).json
    message = answer["choices"][0]["message"]
    assert message["reasoning"].strip() == THOUGHT
    assert message["reasoning_content"] == message["reasoning"]
    assert message["content"] == ANSWER
    reasoning = len(reasoning_server.tokens(f"{THOUGHT}\n"))
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == reasoning


def test_answer_that_ends_while_it_reasons_has_no_content(reasoning_server: LocalServer) -> None:
    answer = reasoning_server.post(PATH, {**REQUEST, "max_tokens": 3}).json
    message = answer["choices"][0]["message"]
    assert message["reasoning"] and THOUGHT.startswith(message["reasoning"])
    assert message["content"] is None
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_reasoning_is_streamed_as_it_is_generated(reasoning_server: LocalServer) -> None:
    whole = reasoning_server.post(PATH, REQUEST).json["choices"][0]["message"]
    with reasoning_server.client() as client:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**REQUEST, stream=True)]
    texts = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert len(texts) > 3
    assert "".join(texts) == whole["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == whole["content"]


def test_reasoning_is_left_out_on_request(reasoning_server: LocalServer) -> None:
    answer = reasoning_server.post(PATH, {**REQUEST, "include_reasoning": False}).json
    message = answer["choices"][0]["message"]
    assert "reasoning" not in message
    assert message["content"] == ANSWER


def test_prompt_without_reasoning_is_answered_with_content(reasoning_server: LocalServer) -> None:
    request = {**REQUEST, "chat_template_kwargs": {"enable_thinking": False}}
    with reasoning_server.saying(ANSWER):
        answer = reasoning_server.post(PATH, request).json
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert "reasoning" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_continued_message_goes_on_after_its_reasoning(reasoning_server: LocalServer) -> None:
    begun = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nThe capital"}
    request = {**REQUEST, "messages": [*REQUEST["messages"], begun], "continue_final_message": True}
    with reasoning_server.saying(" is Paris."):
        message = reasoning_server.post(PATH, request).json["choices"][0]["message"]
    assert message["content"] == " is Paris."
    assert "reasoning" not in message


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_grammar_of_each_conversation_of_a_batch_begins_where_its_own_reasoning_ends(
    reasoning_server: LocalServer, order: tuple[int, int]
) -> None:
    end = reasoning_server.tokens("</think>")
    begun = [("<think>\nStill thinking", end), ("<think>\nEasy.\n</think>\n\nThe capital", None)]
    contents, begins = zip(*(begun[index] for index in order), strict=True)
    messages = [[*REQUEST["messages"], {"role": "assistant", "content": content}] for content in contents]
    request = {**REQUEST, "messages": messages, "continue_final_message": True}
    reasoning_server.post(f"{PATH}/batch", request | {"response_format": {"type": "json_object"}})
    grammars = [sent.params.structured_outputs for sent in reasoning_server.core.requests[-2:]]
    assert [grammar.starts_after for grammar in grammars] == list(begins)
