"""The fields of requests: each one of OpenAI's and vLLM's is supported, refused by name, or ignored on purpose."""

import json
import logging
from typing import Any

import pytest
from field_tables import documented_rows, rows, treatments
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as OpenAIChat
from openai.types.completion_create_params import CompletionCreateParamsBase as OpenAICompletion

from engine_server.server.api.chat.request import BatchChatRequest, ChatRequest
from engine_server.server.api.completions import CompletionRequest
from engine_server.server.api.generation_request import ApiRequest, parse_request
from engine_server.server.api.ignored import MAX_NAMES, IgnoredNames
from engine_server.server.api.pooling.classification import ClassificationRequest
from engine_server.server.api.pooling.embeddings import EmbeddingRequest
from engine_server.server.api.pooling.pooling import PooledRequest
from engine_server.server.api.pooling.ranking import RerankRequest, ScoreRequest
from engine_server.server.api.tokenization import DetokenizeRequest, TokenizeRequest
from engine_server.server.http.errors import ApiError

MODELS: dict[str, type[ApiRequest]] = {
    "completions": CompletionRequest,
    "chat": ChatRequest,
    "chat batch": BatchChatRequest,
}
POOLING_MODELS: dict[str, type[ApiRequest]] = {
    "embeddings": EmbeddingRequest,
    "pooling": PooledRequest,
    "classify": ClassificationRequest,
    "score": ScoreRequest,
    "rerank": RerankRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}
BODIES: dict[type[ApiRequest], dict[str, Any]] = {
    CompletionRequest: {"model": "m", "prompt": "a"},
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    BatchChatRequest: {"model": "m", "messages": [[{"role": "user", "content": "a"}]]},
}
# The fields of vLLM 0.33's requests.
VLLM_SHARED = [
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "ec_transfer_params",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "logprob_token_ids",
    "logprobs",
    "max_tokens",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "priority",
    "prompt_logprobs",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_mm_kwargs",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "routed_experts_prompt_start",
    "seed",
    "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_interval",
    "stream_options",
    "structured_outputs",
    "temperature",
    "thinking_token_budget",
    "top_k",
    "top_p",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "user",
    "vllm_xargs",
    "watermarking",
    "echo",
]
VLLM_COMPLETION = [*VLLM_SHARED, "prompt", "prompt_embeds", "suffix"]
VLLM_CHAT = [
    *VLLM_SHARED,
    *[
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "include_reasoning",
        "max_completion_tokens",
        "media_io_kwargs",
        "messages",
        "mm_processor_kwargs",
        "parallel_tool_calls",
        "reasoning_effort",
        "return_prompt_text",
        "tool_choice",
        "tools",
        "top_logprobs",
    ],
]
# Of vLLM's earlier releases, which its clients still send.
VLLM_EARLIER = [
    "best_of",
    "detokenize",
    "early_stopping",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "logits_processors",
]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (CompletionRequest, [*VLLM_COMPLETION, *VLLM_EARLIER, *OpenAICompletion.__annotations__]),
        (ChatRequest, [*VLLM_CHAT, *VLLM_EARLIER, *OpenAIChat.__annotations__, "stream"]),
    ],
)
def test_every_field_of_openai_and_vllm_is_known(model: type[ApiRequest], names: list[str]) -> None:
    assert sorted(set(names) - model.model_fields.keys()) == []


@pytest.mark.parametrize("models", [MODELS, POOLING_MODELS])
def test_documentation_states_the_treatment_of_every_field(models: dict[str, type[ApiRequest]]) -> None:
    actual = rows([*models.values()])
    assert documented_rows(len(models)) == actual, "docs/http-api.md should have\n" + "\n".join(actual)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model, name)
        for model in MODELS.values()
        for name, found in treatments(model).items()
        if found == "rejected"
    ],
)
def test_field_that_is_not_supported_is_refused_by_name(model: type[ApiRequest], name: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(model, json.dumps(BODIES[model] | {name: "something"}).encode())
    assert refused.value.param == name
    assert refused.value.code == "unsupported_value"
    assert name in refused.value.message
    parse_request(model, json.dumps(BODIES[model] | {name: None}).encode())


def test_unknown_field_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps(BODIES[ChatRequest] | {"no_such_option": 1}).encode()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            parse_request(ChatRequest, body)
    (record,) = [record for record in caplog.records if "no_such_option" in record.getMessage()]
    assert record.levelno == logging.WARNING


def test_number_of_logged_unknown_fields_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    known = IgnoredNames("unknown field")
    with caplog.at_level(logging.WARNING):
        for number in range(10 * MAX_NAMES):
            known.warn([f"field {number}\n" + "x" * 1000])
    assert len(caplog.records) == MAX_NAMES + 1
    assert all(len(record.getMessage()) < 200 for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)
    assert "further" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("model", [CompletionRequest, ChatRequest])
@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"seed": 2**63}, "seed", str(2**63 - 1)),
        ({"seed": -(2**63) - 1}, "seed", str(-(2**63))),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "stream"),
        ({"truncation_side": "left"}, "truncation_side", "truncate_prompt_tokens"),
        ({"truncation_side": "middle", "truncate_prompt_tokens": 3}, "truncation_side", "left"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"length_penalty": 2.0}, "length_penalty", "use_beam_search"),
        ({"use_beam_search": True, "stop": "a"}, "stop", "beam search"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p", "beam search"),
        ({"use_beam_search": True, "priority": 1}, "priority", "beam search"),
        ({"use_beam_search": True, "prompt_logprobs": 1}, "prompt_logprobs", "beam search"),
        ({"cache_salt": ""}, "cache_salt", "at least 1"),
        ({"cache_salt": "x" * 129}, "cache_salt", "128"),
        ({"request_id": "\u00e9"}, "request_id", "printable"),
        ({"request_id": "a b"}, "request_id", "printable"),
        ({"request_id": "x" * 129}, "request_id", "128"),
    ],
)
def test_contradictions_and_wrong_values_are_explained(
    model: type[ApiRequest], fields: dict[str, Any], param: str, part: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(model, json.dumps(BODIES[model] | fields).encode())
    assert refused.value.param == param
    assert part in refused.value.message


@pytest.mark.parametrize("name", ["chat_template", "tools", "messages", "bos_token", "add_generation_prompt"])
def test_template_variables_may_not_replace_those_of_the_server(name: str) -> None:
    with pytest.raises(ApiError, match=f"{name} is set by the server") as refused:
        parse_request(
            ChatRequest, json.dumps(BODIES[ChatRequest] | {"chat_template_kwargs": {name: 1}}).encode()
        )
    assert refused.value.param == "chat_template_kwargs"
