"""The prompts of an embedding model in requests, each compared with the tokens of the whole text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_server import LocalServer, serving_model
from transformers import AutoTokenizer

from engine_server import LLM, InvalidRequestError, PoolingParams

TEXTS = ["ropes", "a fairlead guides a line"]


@pytest.fixture(scope="module")
def server(prompted_model: Path) -> Iterator[LocalServer]:
    with serving_model("--max-model-len=64", model=str(prompted_model), names=["prompted"]) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(prompted_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(prompted_model)


def embed(server: LocalServer, texts: Any, **fields: object) -> np.ndarray:
    answer = server.post("/v1/embeddings", {"input": texts, **fields})
    assert answer.status == 200, answer.body
    return np.array([one["embedding"] for one in answer.json["data"]])


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "text: "),
        ({"prompt_name": "query"}, "search: "),
        ({"prompt_name": "Clustering"}, "topic: "),
        ({"input_type": "query"}, "search: "),
        ({"input_type": "search_query"}, "search: "),
        ({"input_type": "document"}, "text: "),
        ({"input_type": "passage"}, "text: "),
        ({"input_type": "search_document"}, "text: "),
        ({"input_type": "clustering"}, "topic: "),
    ],
)
def test_prompt_is_put_before_each_text(
    server: LocalServer, tokenizer: Any, fields: dict[str, str], prompt: str
) -> None:
    whole = tokenizer([prompt + text for text in TEXTS]).input_ids
    expected = embed(server, whole)
    assert expected.shape == (2, 12)
    np.testing.assert_allclose(embed(server, TEXTS, **fields), expected, atol=1e-6)
    answer = server.post("/v1/embeddings", {"input": TEXTS, **fields})
    assert answer.json["usage"]["prompt_tokens"] == sum(map(len, whole))


def test_texts_are_read_in_lower_case(server: LocalServer, tokenizer: Any) -> None:
    """As sentence-transformers does it: in Python, for the text and its prompt, before they are tokenized."""
    texts = ["ROPES", "A Fairlead guides a LINE", "ΟΔΟΣ [SEP]"]
    lowered = [("text: " + text).lower() for text in texts]
    assert tokenizer(["ROPES"]).input_ids != tokenizer(["ropes"]).input_ids
    np.testing.assert_allclose(embed(server, texts), embed(server, tokenizer(lowered).input_ids), atol=1e-6)


def test_hidden_states_are_those_of_the_text_with_its_prompt(server: LocalServer, tokenizer: Any) -> None:
    answer = server.post("/pooling", {"input": "ropes", "input_type": "query"})
    assert len(answer.json["data"][0]["data"]) == len(tokenizer("search: ropes").input_ids)


def test_ranking_embeds_the_query_and_documents_with_their_prompts(
    server: LocalServer, tokenizer: Any
) -> None:
    query, *documents = embed(server, tokenizer(["search: ropes", "text: cats", "text: rings"]).input_ids)
    answer = server.post("/score", {"queries": "ropes", "documents": ["cats", "rings"]})
    scores = [one["score"] for one in answer.json["data"]]
    np.testing.assert_allclose(scores, np.array(documents) @ query, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (
            "/v1/embeddings",
            {"input": "a", "prompt_name": "none"},
            "prompt_name",
            "query, passage, Clustering",
        ),
        ("/v1/embeddings", {"input": "a", "input_type": "none"}, "input_type", "search_document, clustering"),
        (
            "/v1/embeddings",
            {"input": "a", "input_type": "query", "prompt_name": "query"},
            "input_type",
            "exclude",
        ),
        ("/v1/embeddings", {"input": [5, 6], "prompt_name": "query"}, "prompt_name", "before texts"),
        ("/v1/embeddings", {"input": [[5, 6]], "prompt_name": "query"}, "prompt_name", "before texts"),
        ("/pooling", {"input": "a", "prompt_name": "none"}, "prompt_name", "the model takes one of"),
        (
            "/rerank",
            {"query": "a", "documents": ["b"], "instruction": "judge"},
            "instruction",
            "embeddings takes none",
        ),
    ],
)
def test_prompt_that_the_model_does_not_take_is_refused(
    server: LocalServer, path: str, fields: dict[str, object], param: str, words: str
) -> None:
    answer = server.post(path, fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert words in answer.error["message"]


def test_library_puts_the_same_prompts_before_texts(
    prompted_model: Path, server: LocalServer, tokenizer: Any
) -> None:
    llm = LLM(str(prompted_model), dtype="float32", max_model_len=64)
    for name, prompt in ((None, "text: "), ("query", "search: ")):
        outputs = llm.embed(
            [text.upper() for text in TEXTS], pooling_params=PoolingParams(prompt_name=name), use_tqdm=False
        )
        expected = embed(server, tokenizer([prompt + text for text in TEXTS]).input_ids)
        np.testing.assert_allclose([output.outputs.embedding for output in outputs], expected, atol=1e-5)
    with pytest.raises(InvalidRequestError, match="prompt_name is 'none'"):
        llm.embed(TEXTS, pooling_params=PoolingParams(prompt_name="none"))
    with pytest.raises(InvalidRequestError, match="given as tokens"):
        llm.embed([[5, 6]], pooling_params=PoolingParams(prompt_name="query"))
