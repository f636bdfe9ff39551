"""/score and /rerank with a random language model that answers yes or no, compared with transformers' logits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_server import LocalServer, serving_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_server import AsyncEngineArgs, AsyncLLM
from engine_server.server.conversation.derivation.facts import facts_of
from engine_server.server.loaded_model import loaded_model
from engine_server.server.settings import ApiSettings

QUERY = "What is a fairlead?"
DOCUMENTS = ["Ropes run clear.", "The cat sleeps on the sofa, all day long.", "A ring that guides a rope."]
PROMPT = "Judge: {instruction}\nQuery: {query}\nDocument: {document}\nAnswer:"

Expect = Callable[..., list[float]]


@pytest.fixture(scope="module")
def server(language_reranker: Path) -> Iterator[LocalServer]:
    with serving_model("--max-model-len=128", model=str(language_reranker), names=["reranker"]) as server:
        yield server


@pytest.fixture(scope="module")
def expect(language_reranker: Path) -> Expect:
    """Return a function that scores documents with transformers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(language_reranker)
    model: Any = AutoModelForCausalLM.from_pretrained(language_reranker, dtype=torch.float32).eval()
    no, yes = (tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes"))

    def score(documents: list[str], query: str = QUERY, instruction: str = "relevance") -> list[float]:
        texts = [PROMPT.format(instruction=instruction, query=query, document=one) for one in documents]
        prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        with torch.no_grad():
            logits = [model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]
        return [torch.sigmoid(one[yes] - one[no]).item() for one in logits]

    return score


def scores(server: LocalServer, **body: Any) -> list[float]:
    answer = server.post("/score", body)
    assert answer.status == 200, answer.body
    return [one["score"] for one in answer.json["data"]]


def test_score_is_that_of_the_rendered_pair(server: LocalServer, expect: Expect) -> None:
    expected = expect(DOCUMENTS)
    assert len(set(expected)) == len(DOCUMENTS)
    assert scores(server, queries=QUERY, documents=DOCUMENTS) == pytest.approx(expected, abs=1e-5)
    assert scores(server, text_1=[QUERY, "cat"], text_2=DOCUMENTS[:2]) == pytest.approx(
        [*expect(DOCUMENTS[:1]), *expect(DOCUMENTS[1:2], "cat")], abs=1e-5
    )


def test_instruction_is_rendered(server: LocalServer, expect: Expect) -> None:
    given = scores(server, queries=QUERY, documents=DOCUMENTS, instruction="Find ropes")
    assert given == pytest.approx(expect(DOCUMENTS, instruction="Find ropes"), abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranking_is_by_the_answers(server: LocalServer, expect: Expect, path: str) -> None:
    expected = expect(DOCUMENTS, instruction="Find ropes")
    body = {"query": QUERY, "documents": DOCUMENTS, "instruction": "Find ropes"}
    answer = server.post(path, body).json
    order = sorted(range(3), key=lambda index: -expected[index])
    assert [one["index"] for one in answer["results"]] == order
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(
        [expected[index] for index in order], abs=1e-5
    )


def test_long_document_is_cut_within_the_template(server: LocalServer, expect: Expect) -> None:
    long = " ".join(["a"] * 200)
    answer = server.post("/score", {"queries": QUERY, "documents": long})
    assert (answer.status, answer.error["param"]) == (400, "documents")
    (cut,) = scores(server, queries=QUERY, documents=long, max_tokens_per_doc=8)
    assert cut == pytest.approx(expect([" ".join(["a"] * 8)])[0], abs=1e-5)
    answer = server.post("/score", {"queries": QUERY, "documents": long, "truncate_prompt_tokens": -1})
    assert answer.status == 200 and answer.json["usage"]["prompt_tokens"] == 128
    answer = server.post("/score", {"queries": QUERY, "documents": long, "truncate_prompt_tokens": 5})
    assert (answer.status, answer.error["param"]) == (400, "truncate_prompt_tokens")


def test_instruction_counts_for_each_document(server: LocalServer) -> None:
    answer = server.post("/rerank", {"query": QUERY, "documents": ["a"] * 1024, "instruction": "a" * 40_000})
    assert (answer.status, answer.error["param"]) == (400, "documents")
    assert "characters in all pairs of texts" in answer.error["message"]


def test_model_says_that_it_scores(server: LocalServer) -> None:
    tasks = server.get("/server_info").json["vllm_config"]["model_config"]["supported_tasks"]
    assert tasks == ["classify", "encode", "score"]


@pytest.mark.more
async def test_server_with_a_template_that_renders_no_documents_does_not_start(
    language_reranker: Path,
) -> None:
    args = AsyncEngineArgs(model=str(language_reranker), max_model_len=64, disable_log_stats=True)
    engine = AsyncLLM.from_engine_args(args)
    try:
        with pytest.raises(ValueError, match="roles query and document"):
            loaded_model(engine, ApiSettings(), "{{ messages[0].content }}", facts_of)
    finally:
        engine.shutdown()
