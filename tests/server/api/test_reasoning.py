"""Reasoning in /v1/chat/completions, with a chat template that opens it."""

from pathlib import Path
from typing import Any

import pytest

TEMPLATE = """{# <think> <tool_call> #}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""
TOKENS = 6
REQUEST: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": TOKENS,
}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def reasoning_server(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    template: Path = tmp_path_factory.mktemp("templates") / "think.jinja"
    template.write_text(TEMPLATE)
    server = start_server(f"--chat-template={template}")
    server.wait_for_line("^phase ready ")
    return server


def test_answer_that_the_prompt_opens_with_reasoning_is_reasoning(reasoning_server: Any) -> None:
    answer = reasoning_server.post(PATH, REQUEST).json
    message = answer["choices"][0]["message"]
    assert message["reasoning"]
    assert message["reasoning_content"] == message["reasoning"]
    assert message["content"] is None
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == TOKENS


def test_reasoning_is_streamed_as_it_is_generated(reasoning_server: Any) -> None:
    whole = reasoning_server.post(PATH, REQUEST).json["choices"][0]["message"]
    with reasoning_server.client() as client:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**REQUEST, stream=True)]
    texts = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert len(texts) > 1
    assert "".join(texts) == whole["reasoning"]
    assert not any(delta.content for delta in deltas)


def test_reasoning_is_left_out_on_request(reasoning_server: Any) -> None:
    message = reasoning_server.post(PATH, {**REQUEST, "include_reasoning": False}).json["choices"][0][
        "message"
    ]
    assert "reasoning" not in message
    assert not message["content"]


def test_prompt_without_reasoning_is_answered_with_content(reasoning_server: Any) -> None:
    request = {**REQUEST, "chat_template_kwargs": {"enable_thinking": False}}
    answer = reasoning_server.post(PATH, request).json
    assert answer["choices"][0]["message"]["content"]
    assert "reasoning" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_continued_message_goes_on_after_its_reasoning(reasoning_server: Any) -> None:
    begun = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nThe capital"}
    request = {**REQUEST, "messages": [*REQUEST["messages"], begun], "continue_final_message": True}
    message = reasoning_server.post(PATH, request).json["choices"][0]["message"]
    assert message["content"]
    assert "reasoning" not in message
