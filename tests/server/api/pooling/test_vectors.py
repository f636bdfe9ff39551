"""The bound on the numbers of one answer of a pooling model."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_server.contract.base.bounds import ANSWER_BYTES
from engine_server.requests.pooling_params import PoolingParams
from engine_server.server.api.pooling.vectors import reserve_answer
from engine_server.server.http.errors import ApiError


def check(task: Any, size: int, encoding_format: Any = "float", inputs: int = 1, tokens: int = 0) -> None:
    """Reserve memory for the answer of a model whose states have `size` numbers."""
    config = SimpleNamespace(hidden_size=size)
    model: Any = SimpleNamespace(
        pooling=SimpleNamespace(modules=[]), engine=SimpleNamespace(model_config=config)
    )
    batch: Any = SimpleNamespace(prompts=[None] * inputs, num_tokens=tokens)
    reserve_answer(model, PoolingParams(task=task), batch, encoding_format)


def test_states_of_one_input_are_bounded() -> None:
    check("encode", 128, tokens=1 << 15)
    check("encode", 1024, "base64", tokens=1 << 14)
    with pytest.raises(ApiError, match=r"32,768 rows of 1,024 numbers") as refused:
        check("encode", 1024, tokens=1 << 15)
    assert refused.value.status == 400
    assert ANSWER_BYTES.things in refused.value.message


def test_vectors_of_a_thousand_inputs_fit() -> None:
    check("embed", 4096, inputs=1024, tokens=1 << 20)
