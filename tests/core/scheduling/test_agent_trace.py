"""What the prefix cache saves agents, whose every turn sends the whole conversation again.

A model with recurrent layers can go on only where a state was left behind; an attention model, at the end of any block.
"""

from collections.abc import Iterator

import pytest
from scheduling import make, run

from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.cache.spec import FULL, CacheSpec, StateSpec
from engine_server.requests.sampling_params import SamplingParams

AGENTS, TURNS, BLOCK_SIZE = 4, 40, 16
# Tokens of the first prompt, of what each turn adds to it (results of tools), and of an answer, the first of which are
# reasoning: all prompts have 131 times as many tokens as all answers.
FIRST, ADDED, ANSWER, REASONING = 2000, 900, 152, 100
LONGEST = FIRST + TURNS * (ADDED + ANSWER + 5)
# What a template puts before an answer, and in place of dropped reasoning.
MARKS, DROPPED = [5] * 4, [6]


def conversation(agent: int, drops_reasoning: bool) -> Iterator[list[int]]:
    """Yield the prompt of each turn; the scheduler samples 7s."""
    history = [agent + 1] * FIRST
    for turn in range(TURNS):
        history += MARKS
        yield list(history)
        history += [*DROPPED, *[7] * (ANSWER - REASONING)] if drops_reasoning else [7] * ANSWER
        history += [1000 + turn] * ADDED


def found_tokens(specs: tuple[CacheSpec, ...], drops_reasoning: bool) -> tuple[int, float]:
    """Return the number of tokens found in the cache, and that of tokens of prompts to those of answers."""
    blocks = 2 * AGENTS * LONGEST // BLOCK_SIZE
    scheduler = make(
        blocks, budget=2048, seats=AGENTS, specs=specs, pools=tuple(range(len(specs))), block_size=BLOCK_SIZE,
        longest=LONGEST,
    )  # fmt: skip
    for states in scheduler.table.pools[1:]:  # as many as an engine has
        states.allocate(states.num_free - 4 * AGENTS)
    agents = [conversation(agent, drops_reasoning) for agent in range(AGENTS)]
    found = given = 0
    for turn in range(TURNS):
        requests = []
        for agent, prompts in enumerate(agents):
            prompt = next(prompts)
            requests.append(
                GenerationRequest(f"{agent} {turn}", prompt, len(prompt), SamplingParams(), ANSWER)
            )
            scheduler.add(requests[-1])
        while scheduler.requests:
            run(scheduler, scheduler.schedule())
        found += sum(request.num_cached for request in requests)
        given += sum(request.num_prompt for request in requests)
    return found, given / (AGENTS * TURNS * ANSWER)


@pytest.mark.parametrize(("drops_reasoning", "least"), [(False, 0.97), (True, 0.95)])
def test_agents_find_nearly_as_much_of_their_conversations_as_with_attention_alone(
    drops_reasoning: bool, least: float
) -> None:
    recurrent, ratio = found_tokens((FULL, StateSpec(1)), drops_reasoning)
    attention, _ = found_tokens((FULL,), drops_reasoning)
    assert 100 < ratio < 160
    assert least * attention <= recurrent <= attention
