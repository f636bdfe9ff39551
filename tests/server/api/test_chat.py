"""/v1/chat/completions, as OpenAI's own client sees it."""

import json
from typing import Any

import openai
import pytest
from local_server import LocalServer

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0}


def test_model_answers_with_message_usage_and_finish_reason(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == 45


def test_streamed_answer_equals_the_whole_answer(tiered_server: Any, tiered_client: openai.OpenAI) -> None:
    request = {
        **GREEDY,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Say 你好 and 🎉 twice."}],
    }
    options = {"include_usage": True}
    with tiered_server.saying("你好 and 🎉, 你好"):
        whole = tiered_client.chat.completions.create(**request)
        chunks = list(tiered_client.chat.completions.create(**request, stream=True, stream_options=options))
    first, *middle, finish, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None and chunk.usage is None for chunk in [*middle, finish])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert finish.choices[0].finish_reason
    assert usage.choices == []
    details = {"prompt_tokens_details"}  # the second prompt is cached
    assert usage.usage and whole.usage
    assert usage.usage.model_dump(exclude=details) == whole.usage.model_dump(exclude=details)
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1


def test_stream_is_server_sent_events_that_end_with_done(tiered_server: Any) -> None:
    with tiered_server.saying("The capital of France is Paris."):
        answer = tiered_server.post("/v1/chat/completions", {**GREEDY, "max_tokens": 2, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    payloads = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(event.startswith("data: {") for event in events)
    assert [payload["choices"][0]["delta"] for payload in payloads] == [
        {"role": "assistant", "content": ""},
        {"content": "The"},
        {"content": " capital"},
        {},
    ]
    assert not any("usage" in payload for payload in payloads)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_the_requested_alternatives(client: openai.OpenAI, stream: bool) -> None:
    request = {**GREEDY, "max_tokens": 4, "logprobs": True, "top_logprobs": 3}
    if stream:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
        text = "".join(choice.delta.content or "" for choice in choices)
    else:
        choices = list(client.chat.completions.create(**request).choices)
        text = choices[0].message.content
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or []]
    assert [token.token for token in tokens] == ["The", " capital", " of", " France"]
    assert "".join(token.token for token in tokens) == text
    for token in tokens:
        assert token.bytes == list(token.token.encode())
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy takes the likeliest
        assert token.logprob == token.top_logprobs[0].logprob < 0
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob >= token.top_logprobs[2].logprob


def test_top_logprobs_are_limited_by_max_logprobs_of_the_engine(answering_client: openai.OpenAI) -> None:
    """The server was started with max_logprobs 25."""
    request = {**GREEDY, "max_tokens": 1, "logprobs": True}
    (choice,) = answering_client.chat.completions.create(**request, top_logprobs=25).choices
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [25]
    for count in (26, 2**40):
        with pytest.raises(openai.BadRequestError, match="top_logprobs") as refused:
            answering_client.chat.completions.create(**request, top_logprobs=count)
        assert refused.value.param == "top_logprobs"


def test_logprobs_without_top_logprobs_have_no_alternatives(answering_client: openai.OpenAI) -> None:
    answer = answering_client.chat.completions.create(**GREEDY, max_tokens=2, logprobs=True)
    assert answer.choices[0].logprobs
    assert [token.top_logprobs for token in answer.choices[0].logprobs.content or []] == [[], []]


def test_stop_string_ends_the_answer(answering_client: openai.OpenAI) -> None:
    answer = answering_client.chat.completions.create(**GREEDY, stop=["France", "never"])
    assert answer.choices[0].message.content == "The capital of "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": "France", "token_ids": None}
    kept = answering_client.chat.completions.create(
        **GREEDY, stop="France", extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].message.content == "The capital of France"
    chunks = answering_client.chat.completions.create(**GREEDY, stop=["France"], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of "


def test_max_completion_tokens_takes_precedence_over_max_tokens(answering_client: openai.OpenAI) -> None:
    answer = answering_client.chat.completions.create(**GREEDY, max_tokens=7, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 3


def test_accepts_content_parts_and_the_developer_role(answering_client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    told = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    same = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital\nof France?"},
    ]
    answers = [
        answering_client.chat.completions.create(**GREEDY | {"messages": turns}) for turns in (told, same)
    ]  # type: ignore[arg-type]
    assert answers[0].choices[0].message == answers[1].choices[0].message
    lengths = [
        answer.usage.prompt_tokens for answer in answers if answer.usage
    ]  # the second prompt is cached
    assert len(lengths) == 2 and lengths[0] == lengths[1]


def test_messages_of_the_developer_are_the_systems(scripted: LocalServer) -> None:
    turns = [("system", "One."), ("developer", "Two."), ("user", "Hi"), ("developer", "Three.")]
    body = {
        "model": MODEL,
        "messages": [{"role": role, "content": content} for role, content in turns],
        "max_tokens": 1,
        "return_prompt_text": True,
    }
    prompt = scripted.post("/v1/chat/completions", body).json["prompt_text"]
    assert "<|im_start|>system\nOne.\n\nTwo.<|im_end|>" in prompt
    assert "<|im_start|>system\nThree.<|im_end|>" in prompt


def test_continue_final_message_continues_the_clients_text(
    tiered_server: Any, tiered_client: openai.OpenAI
) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    extra = {"continue_final_message": True}
    with tiered_server.saying(" France is Paris."):
        answer = tiered_client.chat.completions.create(
            **GREEDY | {"messages": turns}, max_tokens=4, extra_body=extra
        )
    assert answer.choices[0].message.content == " France is Paris."


def test_same_seed_gives_the_same_answer(client: openai.OpenAI) -> None:
    request = {
        **GREEDY,
        "temperature": 1.5,
        "max_tokens": 6,
        "messages": [{"role": "user", "content": "A poem."}],
    }
    first, again, other = (
        client.chat.completions.create(**request, seed=seed).choices[0].message.content for seed in (1, 1, 2)
    )
    assert first == again != other


def test_n_gives_several_choices(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "seed": 2, "n": 2, "max_tokens": 6}
    answer = client.chat.completions.create(**request, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    deltas: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in client.chat.completions.create(**request, temperature=1.5, stream=True):
        for choice in chunk.choices:
            deltas[choice.index].append(choice.delta)
    for choice in answer.choices:
        first, *rest = deltas[choice.index]
        assert first.role == "assistant" and all(delta.role is None for delta in rest)
        assert "".join(delta.content or "" for delta in rest) == choice.message.content


def test_unknown_and_neutral_fields_are_accepted(answering_client: openai.OpenAI) -> None:
    extra = {"no_such_field": 1, "tools": [], "response_format": {"type": "text"}, "logit_bias": None}
    answer = answering_client.chat.completions.create(**GREEDY, max_tokens=1, user="me", extra_body=extra)
    assert answer.choices[0].message.content == "The"
