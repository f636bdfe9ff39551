"""/score and /rerank with a random cross-encoder, compared with the library in process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adapters import save_lora
from local_server import LocalServer, serving_model
from transformers import BertForSequenceClassification

from engine_server import LLM

QUERY = "What is a fairlead?"
DOCUMENTS = ["Ropes run clear.", "The cat sleeps on the sofa, all day long.", "A ring that guides a rope."]
LONG = "rope " * 100

Library = Callable[..., list[float]]


@pytest.fixture(scope="module")
def cross_encoder_server(
    cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """The cross-encoder with a file of adapters, of which the model takes "legal" and not "soft"."""
    folder = tmp_path_factory.mktemp("adapters")
    model = BertForSequenceClassification.from_pretrained(cross_encoder)
    save_lora(model, folder / "legal", 1, target_modules=["query", "value"])
    (folder / "soft").mkdir()
    settings = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}
    (folder / "soft/adapter_config.json").write_text(json.dumps(settings))
    wanted = [{"name": name, "uri": str(folder / name)} for name in ("soft", "legal")]
    (folder / "adapters.json").write_text(json.dumps({"adapters": wanted}))
    flags = "--max-model-len=64", f"--adapters-file={folder / 'adapters.json'}"
    with serving_model(*flags, model=str(cross_encoder), names=["reranker"]) as server:
        yield server


@pytest.fixture(scope="module")
def library(cross_encoder: Path) -> Library:
    """Return a function that scores pairs in process."""
    llm = LLM(str(cross_encoder), dtype="float32", max_model_len=64)

    def score(first: Any, second: Any, **options: Any) -> list[float]:
        return [output.outputs.score for output in llm.score(first, second, use_tqdm=False, **options)]

    return score


def scores(server: Any, **body: Any) -> list[float]:
    answer = server.post("/score", body)
    assert answer.status == 200, answer.body
    assert [one["index"] for one in answer.json["data"]] == list(range(len(answer.json["data"])))
    return [one["score"] for one in answer.json["data"]]


@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "items")]
)
def test_one_text_is_scored_with_each_of_several(
    cross_encoder_server: LocalServer, library: Library, names: tuple[str, str]
) -> None:
    expected = library(QUERY, DOCUMENTS)
    assert len(set(expected)) == 3
    body = dict(zip(names, (QUERY, DOCUMENTS), strict=True))
    assert scores(cross_encoder_server, **body) == pytest.approx(expected, abs=1e-5)


def test_lists_of_equal_length_are_scored_pair_by_pair(
    cross_encoder_server: LocalServer, library: Library
) -> None:
    firsts = [QUERY, "cat", "rope"]
    expected = library(firsts, DOCUMENTS)
    assert scores(cross_encoder_server, text_1=firsts, text_2=DOCUMENTS) == pytest.approx(expected, abs=1e-5)


def test_answer_has_the_fields_of_vllms_api(cross_encoder_server: LocalServer) -> None:
    answer = cross_encoder_server.post(
        "/v1/score", {"model": "reranker", "text_1": QUERY, "text_2": DOCUMENTS[0]}
    ).json
    assert answer["id"].startswith("score-")
    assert (answer["object"], answer["model"]) == ("list", "reranker")
    (score,) = answer["data"]
    assert score.keys() == {"index", "object", "score"} and score["object"] == "score"
    tokens = cross_encoder_server.post("/tokenize", {"prompt": f"{QUERY} [SEP] {DOCUMENTS[0]}"}).json["count"]
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_score_without_activation_is_the_models_logit(
    cross_encoder_server: LocalServer, library: Library
) -> None:
    (activated,) = scores(cross_encoder_server, queries=QUERY, documents=DOCUMENTS[0])
    (logit,) = scores(cross_encoder_server, queries=QUERY, documents=DOCUMENTS[0], use_activation=False)
    assert activated != pytest.approx(logit, abs=1e-3)


def test_pair_longer_than_the_context_is_refused_unless_it_is_truncated(
    cross_encoder_server: LocalServer, library: Library
) -> None:
    answer = cross_encoder_server.post("/score", {"queries": QUERY, "documents": [DOCUMENTS[0], LONG]})
    assert (answer.status, answer.error["param"]) == (400, "documents.1")
    expected = library(QUERY, LONG, truncate_prompt_tokens=20)
    cut = scores(cross_encoder_server, queries=QUERY, documents=LONG, truncate_prompt_tokens=20)
    assert cut == pytest.approx(expected, abs=1e-5)
    limited = scores(cross_encoder_server, queries=QUERY, documents=LONG, max_tokens_per_doc=4)
    assert limited == pytest.approx(library(QUERY, "rope " * 4), abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranking_orders_documents_by_their_scores(
    cross_encoder_server: LocalServer, library: Library, path: str
) -> None:
    """In the shape that clients of Jina's and Cohere's APIs read."""
    expected = library(QUERY, DOCUMENTS)
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS}
    answer = cross_encoder_server.post(path, body).json
    order = sorted(range(3), key=lambda index: -expected[index])
    assert [one["index"] for one in answer["results"]] == order
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(
        [expected[index] for index in order], abs=1e-5
    )
    assert [one["document"] for one in answer["results"]] == [{"text": DOCUMENTS[index]} for index in order]
    assert answer["model"] == "reranker" and answer["id"].startswith("rerank-")
    tokens = answer["usage"]["total_tokens"]
    assert answer["usage"]["prompt_tokens"] == tokens > 30
    assert answer["meta"]["tokens"] == {"input_tokens": tokens}
    assert answer["meta"]["billed_units"] == {"search_units": 1}


def test_ranking_can_be_shortened_and_leave_out_the_documents(cross_encoder_server: LocalServer) -> None:
    body = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS]}
    whole = cross_encoder_server.post("/rerank", body | {"top_n": 0}).json["results"]
    assert len(whole) == 3
    short = cross_encoder_server.post("/rerank", body | {"top_n": 2, "return_documents": False}).json[
        "results"
    ]
    assert [one.keys() for one in short] == [{"index", "relevance_score"}] * 2
    assert [one["index"] for one in short] == [one["index"] for one in whole[:2]]
    assert len(cross_encoder_server.post("/rerank", body | {"top_n": 9}).json["results"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"queries": "a"}, "queries"),
        ("/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, "queries"),
        ("/score", {"queries": ["a", "b"], "documents": "a"}, "queries"),
        ("/score", {"queries": "a", "documents": []}, "queries"),
        ("/score", {"queries": "a", "documents": [5]}, "documents"),
        ("/score", {"queries": "a", "documents": ["a"] * 1025}, "documents"),
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a"}, "documents"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": [{"image": "a"}]}, "documents"),
        ("/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
    ],
)
def test_invalid_request_is_refused_and_names_the_field(
    cross_encoder_server: LocalServer, path: str, body: dict[str, Any], param: str
) -> None:
    answer = cross_encoder_server.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_cross_encoder_classifies_with_one_label_and_cannot_embed(
    cross_encoder_server: LocalServer,
) -> None:
    (one,) = cross_encoder_server.post("/classify", {"input": "a"}).json["data"]
    assert (one["label"], one["num_classes"]) == ("LABEL_0", 1)
    answer = cross_encoder_server.post("/v1/embeddings", {"input": "a"})
    assert answer.status == 400
    message = answer.error["message"]
    assert message.startswith("Embedding API is not supported by this model")
    assert "it can classify, encode, score: use /classify, /pooling, /score" in message


def test_invocations_serve_scores_and_classification(cross_encoder_server: LocalServer) -> None:
    body = {"text_1": QUERY, "text_2": DOCUMENTS}
    expected = scores(cross_encoder_server, **body)
    answer = cross_encoder_server.post("/invocations", body).json
    assert [one["score"] for one in answer["data"]] == expected
    assert cross_encoder_server.post("/invocations", {"input": "a"}).json["data"][0]["label"] == "LABEL_0"


def test_scores_are_those_of_the_named_adapter(cross_encoder_server: LocalServer) -> None:
    body = {"queries": "a contract", "documents": ["a lease"], "use_activation": False}
    plain, adapted = (
        cross_encoder_server.post("/score", {"model": name, **body}) for name in ("reranker", "legal")
    )
    assert plain.json["data"][0]["score"] != adapted.json["data"][0]["score"]
    unknown = cross_encoder_server.post("/score", {"model": "medical", **body})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


def test_a_file_of_adapters_serves_lora_alone_and_the_model_starts(
    cross_encoder_server: LocalServer,
) -> None:
    said = "the adapter soft can't be served: a pooling model takes no prompt adapters"
    cross_encoder_server.wait_for_line(said)
    cards = cross_encoder_server.get("/v1/models").json["data"]
    assert [card["id"] for card in cards] == ["reranker", "legal"]
