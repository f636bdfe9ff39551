"""SamplingParams and PoolingParams: vLLM's constructors, copies and defaults."""

import msgspec
import pytest

from engine_server import InvalidRequestError, PoolingParams, SamplingParams
from engine_server.config import PoolingConfig
from engine_server.requests.messages import AddRequest, FrontEndMessage
from engine_server.requests.token_bytes import pack

EMBEDDER = PoolingConfig(
    pooling="MEAN", normalize=True, encoder=True, num_labels=None, labels=[], activation="identity",
    score_activation="identity", dimensions=[],
    num_token_types=0,
)  # fmt: skip


def test_from_optional_takes_none_as_the_default() -> None:
    params = SamplingParams.from_optional(n=None, temperature=None, top_k=5, stop=None, max_tokens=None)
    assert params == SamplingParams(top_k=5, max_tokens=None)


def test_from_optional_converts_and_clamps_logit_bias() -> None:
    params = SamplingParams.from_optional(logit_bias={"3": 500, 7: -500, 9: 1})
    assert params.logit_bias == {3: 100.0, 7: -100.0, 9: 1.0}


def test_clone_shares_nothing_with_the_original() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, extra_args={"key": [1]})
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")
    copy.extra_args["key"].append(2)
    assert params.stop == ["a"] and params.extra_args == {"key": [1]}


def test_extra_args_are_sent_to_the_core_unchanged() -> None:
    params = SamplingParams(extra_args={"a": [1, {"b": None}], "c": "text"})
    message = AddRequest(["r"], pack([1]), params, max_tokens=1, arrival=0.0)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FrontEndMessage)
    assert decoded.params.extra_args == params.extra_args
    with pytest.raises(InvalidRequestError, match="extra_args"):
        SamplingParams(extra_args={"a": object()})


def test_logprobs_of_true_is_one_and_of_false_is_none() -> None:
    params = SamplingParams(logprobs=False, prompt_logprobs=True)
    assert (params.logprobs, params.prompt_logprobs) == (None, 1)


def test_use_activation_decides_whether_embeddings_are_normalized() -> None:
    assert PoolingParams().resolve(EMBEDDER).normalize is True
    assert PoolingParams(use_activation=False).resolve(EMBEDDER).normalize is False
    assert PoolingParams(use_activation=False, normalize=True).resolve(EMBEDDER).normalize is True
