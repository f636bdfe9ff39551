"""Property: any Python value for any parameter is either refused before anything is queued, or served."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_server import AsyncEngineArgs, AsyncLLM, InvalidRequestError, PromptAdapterRequest, SamplingParams

pytestmark = pytest.mark.more
PROMPT = {"prompt_token_ids": [5, 9, 40]}
REFUSALS = (ValueError, TypeError)  # InvalidRequestError is a ValueError
# A bound for counts, so that a served example takes milliseconds; much larger numbers are drawn too, and refused.
SERVED_COUNT = 3


class Text(str):
    """A subclass of str, which msgspec does not encode."""


class SubclassedParams(SamplingParams):
    """Parameters with a different tag in messages."""


numbers = st.one_of(
    st.integers(-SERVED_COUNT, SERVED_COUNT),
    st.sampled_from([2**31, -(2**31), 2**63, 2**64, 2**70, -(2**63) - 1, 10**400]),
    st.floats(),
    st.sampled_from([1e400, -0.0, 1.5, np.float32(1), np.float64(0.5), np.int64(2), True, False]),
)
scalars = st.one_of(
    st.none(),
    numbers,
    st.text(st.characters(), max_size=4),  # with lone surrogates
    st.binary(max_size=3),
    st.sampled_from([Text("a"), object(), complex(1, 2), "x" * 50, SamplingParams, math]),
    st.builds(torch.zeros, st.sampled_from([(2, 32), (2, 31), (0, 32), (2,)])),
    st.builds(np.zeros, st.integers(0, 3)),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.one_of(st.integers(-1, 400), st.text(max_size=3), st.floats()), inner, max_size=3
        )
    ),
    max_leaves=6,
)
prompts = st.one_of(
    values,
    st.dictionaries(
        st.sampled_from(
            [
                "prompt",
                "prompt_token_ids",
                "prompt_embeds",
                "token_type_ids",
                "resume_token_ids",
                "cache_salt",
            ]
        ),
        values | st.lists(st.integers(-1, 300), max_size=4),
        max_size=4,
    ),
)
ARGUMENTS = ("priority", "trace_headers", "lora_request", "prompt_adapter_request", "request_id")


class Engine:
    """An engine with its core in another process, driven from synchronous code."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        args = AsyncEngineArgs(
            model=str(folder), dtype="float32", num_gpu_blocks_override=64, max_model_len=16, block_size=4,
            max_num_seqs=8, scheduling_policy="priority", enable_prompt_embeds=True, max_logprobs=-1,
            enable_prompt_adapter=True, disable_log_stats=True,
        )  # fmt: skip
        self.engine = AsyncLLM.from_engine_args(args)

    def request(self, prompt: Any, params: Any, **options: Any) -> bool:
        """Return True if a request was served, False if it was refused. Any other exception is raised."""

        async def run() -> bool:
            options.setdefault("request_id", "r")
            try:
                stream = await self.engine.add_request(prompt=prompt, params=params, **options)
            except REFUSALS:
                return False
            while not (await stream.get()).finished:
                pass
            return True

        served = self.runner.run(asyncio.wait_for(run(), 60))
        assert self.engine.get_num_unfinished_requests() == 0
        assert not self.engine.errored
        return served

    def close(self) -> None:
        self.runner.run(self.stop())
        self.runner.close()

    async def stop(self) -> None:
        self.engine.shutdown()


@pytest.fixture(scope="module")
def engine(tiny_writer: Path) -> Iterator[Engine]:
    engine = Engine(tiny_writer)
    yield engine
    engine.close()


large = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# Of forty parameters.
@settings(large, max_examples=3 * settings().max_examples)
@given(name=st.sampled_from(SamplingParams.__struct_fields__), value=values)
def test_any_sampling_parameter_is_refused_or_served(engine: Engine, name: str, value: Any) -> None:
    try:
        params = SamplingParams(**{"max_tokens": 2, name: value})
    except REFUSALS:
        return
    engine.request(PROMPT, params)


@large
@given(name=st.sampled_from(SamplingParams.__struct_fields__), value=values)
def test_any_value_assigned_after_construction_is_refused_or_served(
    engine: Engine, name: str, value: Any
) -> None:
    params = SamplingParams(max_tokens=2)
    setattr(params, name, value)
    engine.request(PROMPT, params)


@large
@given(name=st.sampled_from(ARGUMENTS), value=values)
def test_any_argument_of_a_request_is_refused_or_served(engine: Engine, name: str, value: Any) -> None:
    engine.request(PROMPT, SamplingParams(max_tokens=1), **{name: value})


@large
@given(
    adapter=st.builds(
        PromptAdapterRequest, values | st.just("a"), values | st.just(1), values | st.just("/a"), values
    )
)
def test_any_prompt_adapter_is_refused_or_served(engine: Engine, adapter: Any) -> None:
    engine.request(PROMPT, SamplingParams(max_tokens=1), prompt_adapter_request=adapter)


@large
@given(value=values)
def test_any_arrival_time_is_refused_or_served(engine: Engine, value: Any) -> None:
    engine.request(PROMPT, SamplingParams(max_tokens=1, timeout=1000.0), arrival_time=value)


@large
@given(prompt=prompts)
def test_any_prompt_is_refused_or_served(engine: Engine, prompt: Any) -> None:
    engine.request(prompt, SamplingParams(max_tokens=1))


@large
@given(params=values)
def test_any_params_object_is_refused_or_served(engine: Engine, params: Any) -> None:
    engine.request(PROMPT, params)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 1.5), ("priority", True), ("priority", 2**70), ("priority", "high"),
        ("arrival_time", "now"), ("arrival_time", math.nan), ("arrival_time", 10**400), ("arrival_time", True),
        ("request_id", "\ud800"), ("trace_headers", {"traceparent": 5}),
    ],
)  # fmt: skip
def test_wrong_argument_is_named_and_engine_serves_the_next_request(
    engine: Engine, name: str, value: Any
) -> None:
    options = {"request_id": "r", name: value}

    async def add() -> None:
        await engine.engine.add_request(prompt=PROMPT, params=SamplingParams(max_tokens=1), **options)

    with pytest.raises(InvalidRequestError, match=name) as caught:
        engine.runner.run(add())
    assert caught.value.parameter == name
    assert engine.request(PROMPT, SamplingParams(max_tokens=1))


def test_params_of_a_subclass_reach_the_core(engine: Engine) -> None:
    assert engine.request(PROMPT, SubclassedParams(max_tokens=1))


def test_numpy_and_bool_token_ids_are_refused(engine: Engine) -> None:
    for tokens in ([True], [1.0], [np.int64(3)], "12", np.array([1, 2])):
        assert not engine.request({"prompt_token_ids": tokens}, SamplingParams(max_tokens=1))


@pytest.mark.parametrize(("name", "value"), [("data_parallel_rank", 1), ("lora_request", "adapter")])
def test_argument_that_is_not_supported_is_refused_by_name(engine: Engine, name: str, value: object) -> None:
    async def add() -> None:
        await engine.engine.add_request("r", PROMPT, SamplingParams(max_tokens=1), **{name: value})

    with pytest.raises(InvalidRequestError, match=name):
        engine.runner.run(add())
    assert engine.request(PROMPT, SamplingParams(max_tokens=1), **{name: None})


def test_abort_takes_callers_ids_alone(engine: Engine) -> None:
    async def abort(internal: bool) -> None:
        await engine.engine.abort("unknown", internal=internal)

    engine.runner.run(abort(False))
    with pytest.raises(InvalidRequestError, match="internal"):
        engine.runner.run(abort(True))


def test_configs_of_async_engine_have_the_names_of_vllm(engine: Engine) -> None:
    assert engine.engine.model_config is engine.engine.vllm_config.model_config
