"""/classify and /pooling with a random classifier on a decoder, compared with the library in process."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_server import LocalServer, serving_model

from engine_server import LLM

TEXTS = ["What a day!", "No.", "The rope ran clear through the ring and nobody said a word about it."]
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.fixture(scope="module")
def llm(classifier: Path) -> LLM:
    return LLM(str(classifier), dtype="float32", max_model_len=128, num_gpu_blocks_override=64)


@pytest.fixture(scope="module")
def classifier_server(classifier: Path) -> Iterator[LocalServer]:
    with serving_model("--max-model-len=128", model=str(classifier), names=["moods"]) as server:
        yield server


def probabilities(answer: Any) -> np.ndarray:
    assert answer.status == 200, answer.body
    return np.array([one["probs"] for one in answer.json["data"]])


def test_classifies_each_input_with_its_likeliest_label(classifier_server: LocalServer, llm: LLM) -> None:
    expected = np.array([output.outputs.probs for output in llm.classify(TEXTS, use_tqdm=False)])
    answer = classifier_server.post("/classify", {"model": "moods", "input": TEXTS})
    np.testing.assert_allclose(probabilities(answer), expected, atol=1e-5)
    labels = [("calm", "glad", "angry")[index] for index in expected.argmax(1)]
    assert [one["label"] for one in answer.json["data"]] == labels
    assert [one["num_classes"] for one in answer.json["data"]] == [3] * 3
    assert answer.json["id"].startswith("classify-")


def test_classification_without_activation_gives_logits(classifier_server: LocalServer) -> None:
    logits = probabilities(classifier_server.post("/classify", {"input": TEXTS, "use_activation": False}))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    activated = probabilities(classifier_server.post("/classify", {"input": TEXTS}))
    np.testing.assert_allclose(activated, expected, atol=1e-5)


def test_conversation_is_classified_as_its_chat_template_renders_it(
    classifier_server: LocalServer, llm: LLM
) -> None:
    template = llm.get_tokenizer().apply_chat_template
    for options in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
        text = template(TALK, tokenize=False, **options)
        tokens = llm.get_tokenizer()(text, add_special_tokens=False).input_ids
        (expected,) = llm.classify([tokens], use_tqdm=False)
        answer = classifier_server.post("/classify", {"messages": TALK, **options})
        np.testing.assert_allclose(probabilities(answer)[0], expected.outputs.probs, atol=1e-5)
        assert answer.json["usage"]["prompt_tokens"] == len(tokens)


def test_pooling_returns_the_hidden_state_of_each_token(classifier_server: LocalServer, llm: LLM) -> None:
    expected = [output.outputs.data.numpy() for output in llm.encode(TEXTS, use_tqdm=False)]
    answer = classifier_server.post("/pooling", {"input": TEXTS})
    assert answer.json["data"][0]["object"] == "pooling"
    for one, states in zip(answer.json["data"], expected, strict=True):
        np.testing.assert_allclose(one["data"], states, atol=1e-4)
    packed = classifier_server.post("/pooling", {"input": TEXTS, "encoding_format": "base64"}).json
    for one, states in zip(packed["data"], expected, strict=True):
        numbers = np.frombuffer(base64.b64decode(one["data"]), "<f4")
        np.testing.assert_allclose(numbers.reshape(states.shape), states, atol=1e-4)


def test_pooling_takes_any_task_of_the_model(classifier_server: LocalServer) -> None:
    expected = probabilities(classifier_server.post("/classify", {"input": TEXTS}))
    answer = classifier_server.post("/pooling", {"input": TEXTS, "task": "classify"})
    np.testing.assert_allclose([one["data"] for one in answer.json["data"]], expected, atol=1e-6)
    answer = classifier_server.post("/pooling", {"input": TEXTS, "task": "embed"})
    assert (answer.status, answer.error["param"]) == (400, "task")
    assert "is not supported by this model; it can classify, encode" in answer.error["message"]


def test_hidden_states_of_too_many_tokens_are_refused(classifier_server: LocalServer) -> None:
    answer = classifier_server.post("/pooling", {"input": [[5] * 128] * 257})
    assert (answer.status, answer.error["param"]) == (400, "input")
    assert "at most 32,768 are allowed" in answer.error["message"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": TALK, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": TALK, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        (
            {"messages": TALK, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ({"input": ""}, "input"),
        ({"input": ["a", "a" * 1_000_000]}, "input.1"),
    ],
)
def test_invalid_request_is_refused_and_names_the_field(
    classifier_server: LocalServer, options: dict[str, Any], param: str
) -> None:
    answer = classifier_server.post("/classify", options)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize("path", ["/score", "/rerank", "/v1/embeddings", "/v1/completions"])
def test_endpoints_for_other_tasks_name_what_the_model_can_do(
    classifier_server: LocalServer, path: str
) -> None:
    answer = classifier_server.post(path, {})
    assert answer.status == 400
    assert "it can classify, encode: use /classify, /pooling" in answer.error["message"]


def test_invocations_choose_pooling_by_its_task(classifier_server: LocalServer) -> None:
    answer = classifier_server.post("/invocations", {"input": TEXTS[0], "task": "classify"})
    assert answer.json["data"][0]["object"] == "pooling"
