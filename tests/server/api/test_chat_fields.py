"""Fields of /v1/chat/completions beyond OpenAI's common ones."""

import json
from typing import Any

import openai
import pytest
from server.conversation.prompted import prompted

from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.generation_request import parse_request

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_tokens": 8, "messages": QUESTION}


def post(server: Any, path: str = CHAT, **fields: Any) -> Any:
    answer = server.post(path, GREEDY | fields)
    assert answer.status == 200, answer.body
    return answer.json


def prompt_text(server: Any, **fields: Any) -> str:
    return post(server, return_prompt_text=True, max_tokens=1, **fields)["prompt_text"]


def test_echo_begins_the_answer_with_the_message_that_it_continues(tiered_server: Any) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    fields = {"messages": messages, "continue_final_message": True}
    with tiered_server.saying(" France is Paris."):
        plain = post(tiered_server, **fields)["choices"][0]["message"]
        echoed = post(tiered_server, **fields, echo=True)["choices"][0]["message"]
    assert echoed == {"role": "assistant", "content": "The capital of" + plain["content"]}
    with tiered_server.saying("The capital of France is Paris."):
        unrelated = post(tiered_server, echo=True)["choices"][0]["message"]
    assert unrelated["content"] == "The capital of France is Paris."


def test_answer_without_generation_prompt_has_the_role_of_the_last_message(tiered_server: Any) -> None:
    answer = post(tiered_server, add_generation_prompt=False)
    assert answer["choices"][0]["message"]["role"] == "user"
    assert prompt_text(tiered_server, add_generation_prompt=False).endswith("France?<|im_end|>\n")
    assert prompt_text(tiered_server).endswith("<|im_start|>assistant\n")


def test_any_role_is_left_to_the_chat_template(tiered_server: Any) -> None:
    messages = [{"role": "narrator", "content": "It was night."}, *QUESTION]
    assert "<|im_start|>narrator\nIt was night.<|im_end|>" in prompt_text(tiered_server, messages=messages)


def test_null_content_is_no_text(tiered_server: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, *QUESTION]
    text = prompt_text(tiered_server, messages=messages)
    assert "<|im_start|>assistant\n<|im_end|>" in text and "None" not in text


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "", "reasoning_content": "Hm."},
        {"reasoning": None, "thinking": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Other."},
    ],
)
def test_first_thought_of_a_message_that_is_not_empty_counts(fields: dict[str, Any]) -> None:
    body = {"messages": [*QUESTION, {"role": "assistant", "content": "Paris.", **fields}, *QUESTION]}
    (_, answer, _) = prompted(parse_request(ChatRequest, json.dumps(body).encode())).messages
    assert answer == {"role": "assistant", "content": "Paris.", "reasoning_content": "Hm."}


def test_special_tokens_are_added_on_request(tiered_server: Any) -> None:
    """The tokenizer of this model adds none."""
    plain, more = (
        post(tiered_server, add_special_tokens=add, max_tokens=1)["usage"] for add in (False, True)
    )
    assert plain == more


def test_token_ids_of_a_whole_answer_are_null_unless_they_are_asked_for(tiered_server: Any) -> None:
    answer = post(tiered_server, max_tokens=2)
    assert answer["prompt_token_ids"] is None
    assert answer["choices"][0]["token_ids"] is None


def test_prompt_logprobs_and_token_ids_are_fields_of_the_answer(server: Any) -> None:
    answer = post(server, prompt_logprobs=0, return_token_ids=True, max_tokens=2)
    ids = answer["prompt_token_ids"]
    assert len(ids) == answer["usage"]["prompt_tokens"] == len(answer["prompt_logprobs"])
    assert answer["prompt_logprobs"][0] is None
    assert all(
        str(token) in entry for token, entry in zip(ids[1:], answer["prompt_logprobs"][1:], strict=True)
    )
    assert len(answer["choices"][0]["token_ids"]) == 2
    assert post(server)["prompt_logprobs"] is None


def test_all_log_probabilities_are_limited_by_the_server(tiered_server: Any) -> None:
    refused = tiered_server.post(CHAT, GREEDY | {"logprobs": True, "top_logprobs": -1})
    assert refused.status == 400 and refused.error["param"] == "top_logprobs"


def test_beam_search_returns_the_best_beams(client: openai.OpenAI) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    extra = {"use_beam_search": True, "length_penalty": 0.5, "continue_final_message": True}
    request = GREEDY | {"messages": messages, "max_tokens": 2}
    answer = client.chat.completions.create(**request, n=2, extra_body=extra)
    assert len({choice.message.content for choice in answer.choices}) == 2
    assert "Paris" in answer.choices[0].message.content


def test_chat_template_of_a_request_is_refused(tiered_server: Any) -> None:
    refused = tiered_server.post(CHAT, GREEDY | {"chat_template": "{{ messages }}"})
    assert refused.status == 400 and refused.error["param"] == "chat_template"
    assert "--trust-request-chat-template" in refused.error["message"]


def test_batch_answers_each_conversation_with_one_choice(tiered_server: Any) -> None:
    conversations = [QUESTION, [{"role": "user", "content": "Say hi."}]]
    answer = post(tiered_server, f"{CHAT}/batch", messages=conversations, return_token_ids=True)
    alone = [post(tiered_server, messages=messages, return_token_ids=True) for messages in conversations]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice, one in zip(answer["choices"], alone, strict=True):
        assert choice["message"] == one["choices"][0]["message"]
        assert choice["token_ids"] == one["choices"][0]["token_ids"]
    assert answer["usage"]["total_tokens"] == sum(one["usage"]["total_tokens"] for one in alone)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"messages": QUESTION}, "messages.0"),
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages.0"),
    ],
)
def test_batch_refuses_what_it_cannot_do(tiered_server: Any, fields: dict[str, Any], param: str) -> None:
    refused = tiered_server.post(f"{CHAT}/batch", GREEDY | {"messages": [QUESTION]} | fields)
    assert refused.status == 400 and refused.error["param"] == param


async def test_asynchronous_client_streams_every_field(tiered_server: Any) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{tiered_server.url}/v1", api_key="none", max_retries=0
    ) as client:
        request = GREEDY | {"logprobs": True, "top_logprobs": 1, "n": 2, "temperature": 1.0, "seed": 3}
        whole = await client.chat.completions.create(**request)
        texts = ["", ""]
        options = {"include_usage": True, "continuous_usage_stats": True}
        async for chunk in await client.chat.completions.create(
            **request, stream=True, stream_options=options
        ):
            assert chunk.system_fingerprint == whole.system_fingerprint
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [choice.message.content for choice in whole.choices]
        assert chunk.usage == whole.usage
