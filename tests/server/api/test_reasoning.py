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
def test_grammar_of_each_conversation_of_a_batch_has_the_reasoning_that_its_own_prompt_leaves_open(
    reasoning_server: LocalServer, order: tuple[int, int]
) -> None:
    begun = [("<think>\nStill thinking", True), ("<think>\nEasy.\n</think>\n\nThe capital", False)]
    contents, reasons = zip(*(begun[index] for index in order), strict=True)
    messages = [[*REQUEST["messages"], {"role": "assistant", "content": content}] for content in contents]
    request = {**REQUEST, "messages": messages, "continue_final_message": True}
    answer = reasoning_server.post(f"{PATH}/batch", request | {"response_format": {"type": "json_object"}})
    assert answer.status == 200, answer.body
    grammars = [sent.params.structured_outputs for sent in reasoning_server.core.requests[-2:]]
    assert ["</think>" in str(grammar.grammar) for grammar in grammars] == list(reasons)


def budget_of(server: LocalServer) -> tuple[int, list[int], bool] | None:
    reasoning = server.core.requests[-1].params.reasoning
    return reasoning and (reasoning.budget, reasoning.end[0].token_ids, reasoning.inside)


LIMITS = [
    (PATH, {"max_tokens": 3, "thinking_token_budget": 5}),
    ("/v1/messages", {"max_tokens": 3, "thinking": {"type": "enabled", "budget_tokens": 5}}),
    ("/v1/messages", {"max_tokens": 3, "thinking_token_budget": 5}),
    ("/v1/responses", {"max_output_tokens": 3, "thinking_token_budget": 5}),
]


def limited(server: LocalServer, path: str, fields: dict[str, Any]) -> Any:
    turns = {"input": "Why?"} if path == "/v1/responses" else {"messages": REQUEST["messages"]}
    return server.post(path, {"model": "smollm2", **turns, **fields})


@pytest.mark.parametrize(("path", "fields"), LIMITS)
def test_budget_limits_the_reasoning(
    reasoning_server: LocalServer, path: str, fields: dict[str, Any]
) -> None:
    answer = limited(reasoning_server, path, fields)
    assert answer.status == 200, answer.body
    assert budget_of(reasoning_server) == (5, reasoning_server.tokens("</think>"), True)
    assert "x-fairlead-ignored" not in answer.headers


@pytest.mark.parametrize(
    "fields", [{"thinking_token_budget": -1}, {}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_budget_of_an_answer_counts_only_reasoning_that_is_open(
    reasoning_server: LocalServer, fields: dict[str, Any]
) -> None:
    reasoning_server.post(PATH, {**REQUEST, "max_tokens": 1, **fields})
    assert budget_of(reasoning_server) is None
    closed = {"thinking_token_budget": 5, "chat_template_kwargs": {"enable_thinking": False}}
    reasoning_server.post(PATH, {**REQUEST, "max_tokens": 1, **closed})
    assert budget_of(reasoning_server) == (5, reasoning_server.tokens("</think>"), False)


def test_budget_limits_the_reasoning_that_a_cut_prompt_ends_within(reasoning_server: LocalServer) -> None:
    cut = {"thinking_token_budget": 5, "truncate_prompt_tokens": 12}
    answer = limited(reasoning_server, PATH, {"max_tokens": 3, **cut})
    assert answer.status == 200, answer.body
    assert len(reasoning_server.core.requests[-1].token_ids()) == 12
    assert budget_of(reasoning_server) == (5, reasoning_server.tokens("</think>"), True)


@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/v1/responses"])
def test_budget_of_a_model_without_known_reasoning_is_refused(scripted: LocalServer, path: str) -> None:
    fields = {"thinking_token_budget": 5} | ({"max_tokens": 3} if path == "/v1/messages" else {})
    answer = limited(scripted, path, fields)
    assert answer.status == 400
    assert "thinking_token_budget" in answer.body.decode()


def test_hint_of_a_budget_is_ignored_by_name_for_a_model_without_known_reasoning(
    scripted: LocalServer,
) -> None:
    answer = limited(scripted, *LIMITS[1])
    assert answer.status == 200, answer.body
    assert answer.headers["x-fairlead-ignored"] == "thinking (budget_tokens)"


def test_beam_search_takes_no_budget(reasoning_server: LocalServer) -> None:
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 3, "thinking_token_budget": 5}
    answer = reasoning_server.post(PATH, {**REQUEST, **fields})
    assert answer.status == 400
    assert "thinking_token_budget has no effect on a beam search" in answer.body.decode()
