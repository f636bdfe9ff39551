"""Prefix caching in an engine: shared blocks, their counts in metrics, and unchanged output."""

import hashlib
import struct
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from engine_server import EngineArgs, LLMEngine, LoRARequest, SamplingParams
from engine_server.core.adapters.adapter import Adapter, RequestAdapters
from engine_server.core.scheduling.block_hashes import KnownHashes
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.telemetry.loggers import PrometheusStatLogger

PROMPT = [position % 90 + 5 for position in range(70)]


@pytest.fixture
def tiny(tiny_llama) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_seqs=8, max_num_batched_tokens=2048, disable_log_stats=True, enable_prompt_embeds=True,
        )
    )  # fmt: skip


def generate(engine: LLMEngine, finish, params, *prompts: list[int], **prompt):
    """Add prompts together, and return their outputs."""
    for number, token_ids in enumerate(prompts):
        engine.add_request(number, {"prompt_token_ids": token_ids, **prompt}, params)
    last = finish(engine)
    return [last[str(number)] for number in range(len(prompts))]


def test_repeated_prompt_is_read_from_the_cache(tiny, finish, tiny_params) -> None:
    registry = CollectorRegistry()
    tiny.add_logger("mine", PrometheusStatLogger(tiny.config, registry=registry))
    params = tiny_params(temperature=0, max_tokens=20, ignore_eos=True)
    [first] = generate(tiny, finish, params, PROMPT)
    [again] = generate(tiny, finish, params, PROMPT)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 64)
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    [turn] = generate(tiny, finish, params, PROMPT + first.outputs[0].token_ids + [3])
    assert turn.num_cached_tokens == 80  # the last of 90 tokens was never computed
    labels = {"model_name": tiny.config.model_config.served_model_name[0], "engine": "0"}
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "prompt_tokens_cached")
    counted = {name: registry.get_sample_value(f"vllm:{name}_total", labels) for name in names}
    assert counted == dict(zip(names, (70 + 70 + 91, 64 + 80, 70 + 70 + 91, 64 + 80), strict=True))


def test_last_token_of_a_cached_prompt_is_computed(tiny, finish, tiny_params) -> None:
    params = tiny_params(temperature=0, max_tokens=1)
    assert [generate(tiny, finish, params, PROMPT[:32])[0].num_cached_tokens for _ in range(2)] == [0, 16]


def test_equal_prompts_share_blocks_within_one_step(tiny, finish, tiny_params) -> None:
    params = tiny_params(temperature=0, max_tokens=4, ignore_eos=True)
    for number in range(8):
        tiny.add_request(number, {"prompt_token_ids": PROMPT}, params)
    tiny.step()
    assert tiny.debug_state().scheduler.num_used_blocks == 4 + 8
    last = finish(tiny)
    assert [last[str(number)].num_cached_tokens for number in range(8)] == [0] + [64] * 7
    assert len({tuple(output.outputs[0].token_ids) for output in last.values()}) == 1


def test_prompts_with_different_salts_share_no_blocks(tiny, finish, tiny_params) -> None:
    params = tiny_params(temperature=0, max_tokens=1)
    salts = ["mine", "yours", "mine"]
    cached = [generate(tiny, finish, params, PROMPT, cache_salt=salt)[0].num_cached_tokens for salt in salts]
    assert cached == [0, 0, 64]
    with pytest.raises(ValueError, match="cache_salt"):
        tiny.add_request("x", {"prompt_token_ids": PROMPT, "cache_salt": 7}, params)


def test_prompts_of_equal_embeddings_share_blocks_and_others_do_not(tiny, finish, tiny_params) -> None:
    rows = torch.randn(70, 32, generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[-1, -1] += 1
    prompts = [{"prompt_embeds": rows}, {"prompt_token_ids": [0] * 70}, {"prompt_embeds": other}]
    prompts += [{"prompt_embeds": rows.double()}, {"prompt_embeds": rows, "cache_salt": "mine"}]
    params = tiny_params(temperature=0, max_tokens=1)
    cached = [generate(tiny, finish, params, [], **prompt)[0].num_cached_tokens for prompt in prompts * 2]
    assert cached == [0] * 5 + [64] * 5


def test_scopes_and_salts_divide_the_cache_further() -> None:
    def hashes(scope: str | None, salt: str | None) -> tuple[bytes, ...]:
        request = GenerationRequest(
            "x", [1, 2, 3, 4], 4, SamplingParams(), 1, cache_scope=scope, cache_salt=salt
        )
        request.hash_blocks(2, KnownHashes(2, 0))
        return tuple(request.hashes)

    pairs = [(scope, salt) for scope in (None, "one", "two") for salt in (None, "one", "two")]
    assert len({hashes(*pair) for pair in pairs}) == len(pairs)
    assert all(hashes(*pair) == hashes(*pair) for pair in pairs)


def test_reset_empties_the_cache_unless_a_request_runs(tiny, finish, tiny_params) -> None:
    tiny.add_request("runs", {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=2, ignore_eos=True))
    tiny.step()
    assert not tiny.reset_prefix_cache()
    finish(tiny)
    assert tiny.reset_prefix_cache()
    assert generate(tiny, finish, tiny_params(max_tokens=1), PROMPT)[0].num_cached_tokens == 0


def test_nothing_is_cached_when_prefix_caching_is_off(tiny_llama, finish, tiny_params) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            enable_prefix_caching=False, disable_log_stats=True,
        )
    )  # fmt: skip
    outputs = [generate(engine, finish, tiny_params(max_tokens=1), PROMPT)[0] for _ in range(2)]
    assert [output.num_cached_tokens for output in outputs] == [0, 0]


def test_block_hashes_are_equal_in_every_process() -> None:
    tokens = [1, 2, 70000, 4]
    root = hashlib.sha256(b"\x93\xa4salt\x00\xc0").digest()  # in msgpack: the salt, rope regime 0, None
    request = GenerationRequest("x", tokens, 4, SamplingParams(), 1, cache_salt="salt")
    request.hash_blocks(2, KnownHashes(2, 0))
    first = hashlib.sha256(root + struct.pack("<2I", 1, 2)).digest()
    assert request.hashes == [first, hashlib.sha256(first + struct.pack("<2I", 70000, 4)).digest()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "ed1b517b2098e4e9da8f53f1f4a6e7fbd9d4b15e9e538700b924f0689a11ecf7"),
        ({"cache_salt": "salt"}, "f1ff4b428cae2d2e1cb8e93cf6488381a73c849631f93538659cf56f54a352af"),
        (
            {"cache_salt": "salt", "cache_scope": "scope"},
            "01095ed9480d169df35e8dc36535be767112f358d3e7d3f7bd129d06d2eb28db",
        ),
        ({"rope_regime": 1}, "25c07ae8296d45d8a49f3156e735e63645654b7105d479d805724fb4fa68dfc1"),
        (
            {"adapters": RequestAdapters(Adapter(LoRARequest("lora", 1, "/lora"), digest="abc"))},
            "764d3ff7ec12d223cff6bbd1fe16bf59f86353a7d2ce344e81e6691024b81ccb",
        ),
    ],
    ids=["plain", "salt", "scope", "rope regime", "LoRA"],
)
def test_block_hashes_of_tokens_are_those_of_earlier_releases(fields: dict[str, Any], expected: str) -> None:
    request = GenerationRequest("x", [1, 2, 70000, 4, 5], 5, SamplingParams(), 1, **fields)
    request.hash_blocks(2, KnownHashes(2, 0))
    assert request.hashes[-1].hex() == expected
