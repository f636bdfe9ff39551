"""Driving an engine in this process with random tokens, which never hit the prefix cache."""

import random
from typing import Any

from engine_server import LLMEngine, RequestOutputKind, SamplingParams

Prompts = list[list[int]]


def prompts_of(count: int, length: int, vocabulary: int, seed: int) -> Prompts:
    draw = random.Random(seed)
    return [[draw.randrange(10, vocabulary) for _ in range(length)] for _ in range(count)]


def start(engine: LLMEngine, prompts: Prompts, made: int, **sampling: Any) -> None:
    """Add a request for exactly `made` tokens for each prompt; greedy unless `sampling` overrides it."""
    kind = RequestOutputKind.DELTA
    fixed = {"max_tokens": made, "ignore_eos": True, "detokenize": False, "output_kind": kind}
    params = SamplingParams(**{"temperature": 0} | sampling | fixed)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)


def step(engine: LLMEngine) -> int:
    """Run a step and return the number of new tokens."""
    return sum(len(one.token_ids) for output in engine.step() for one in output.outputs)


def finish(engine: LLMEngine) -> int:
    """Step until the engine is empty and return the number of new tokens."""
    tokens = 0
    while engine.has_unfinished_requests():
        tokens += step(engine)
    return tokens
