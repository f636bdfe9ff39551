"""Models with recurrent layers: greedy output in float32 is that of a forward without a cache, however it is computed.

States are slots of a pool: a row reads one and writes one, and those that it leaves behind stay in the prefix cache.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recurrent_models import (
    FAMILIES,
    PROMPTS,
    ask,
    check_free,
    check_greedy,
    save_recurrent,
    scheduler_of,
    start,
)
from tiers import tiered

from engine_server import LLMEngine, RequestOutput
from engine_server.core.executor import Executor
from engine_server.modeling.attention.states import StateCache

pytestmark = pytest.mark.transformers

NEW_TOKENS = 10
Finish = Callable[[LLMEngine], dict[str, RequestOutput]]
by_family = pytest.mark.parametrize(
    "family",
    tiered(FAMILIES, "Qwen3_5ForCausalLM", "Lfm2ForCausalLM", "GraniteMoeHybridForCausalLM", more=FAMILIES),
)


def greedy(
    engine: LLMEngine, finish: Finish, prompts: Sequence[Sequence[int]], **params: Any
) -> list[list[int]]:
    for number, prompt in enumerate(prompts):
        ask(engine, str(number), prompt, **params)
    last = finish(engine)
    return [list(last[str(number)].outputs[0].token_ids) for number in range(len(prompts))]


def states_of(engine: LLMEngine) -> StateCache:
    executor: Executor = engine._core.executor
    states = executor.first._recurrence
    assert isinstance(states, StateCache)
    return states


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen")
    return folder, save_recurrent("Qwen3_5ForCausalLM", folder)


@by_family
def test_prompts_of_unequal_lengths_are_continued_as_each_alone(
    family: str, tmp_path: Path, finish: Finish
) -> None:
    model = save_recurrent(family, tmp_path)
    for options in (
        {},
        {"max_num_batched_tokens": 5, "max_num_seqs": 2},
        {"max_num_batched_tokens": 16, "num_state_slots": 1},
        {"max_num_batched_tokens": 23, "num_state_slots": 6, "async_scheduling": True},
    ):
        engine = start(tmp_path, **options)
        outputs = greedy(engine, finish, PROMPTS)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            check_greedy(model, prompt, output)
        assert greedy(engine, finish, PROMPTS) == outputs  # from the prefix cache
        longer = [prompt + output for prompt, output in zip(PROMPTS, outputs, strict=True)]
        for prompt, output in zip(longer, greedy(engine, finish, longer), strict=True):
            check_greedy(model, prompt, output)
        check_free(engine)


@by_family
def test_log_probabilities_depend_on_the_states_of_each_layer(
    family: str, tmp_path: Path, finish: Finish
) -> None:
    """The comparisons can fail: a state of any layer that is zeroed once changes what follows."""
    model = save_recurrent(family, tmp_path)
    engine = start(tmp_path, max_num_batched_tokens=16)
    states = states_of(engine)

    def difference(site: int | None) -> float:
        """Return by how much log-probabilities differ from those of a forward, if a site's states are zeroed once."""
        ask(engine, "0", PROMPTS[-1], max_tokens=12, logprobs=1)
        engine.step()
        while scheduler_of(engine).running[0].num_output < 3:
            engine.step()
        if site is not None:
            states.tensors[site].zero_()
        output = finish(engine)["0"].outputs[0]
        assert engine.reset_prefix_cache()
        tokens = torch.tensor(output.token_ids)
        with torch.inference_mode():
            whole = torch.tensor([[*PROMPTS[-1], *output.token_ids[:-1]]])
            logits = model(whole, use_cache=False).logits[0, len(PROMPTS[-1]) - 1 :]
        expected = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()
        found = [one[token].logprob for one, token in zip(output.logprobs, output.token_ids, strict=True)]
        return max(abs(a - b) for a, b in zip(expected, found, strict=True))

    assert difference(None) < 1e-4
    assert all(difference(site) > 1e-3 for site in range(len(states.tensors)))


def test_each_place_to_cut_a_prompt_gives_the_same_tokens(qwen, finish: Finish) -> None:
    folder, model = qwen
    prompt = PROMPTS[-1]
    engine = start(folder, enable_prefix_caching=False)
    (expected,) = greedy(engine, finish, [prompt])
    check_greedy(model, prompt, expected)
    scheduler = scheduler_of(engine)
    for cut in range(1, len(prompt)):
        scheduler._budget = cut - 1  # it grows by one with each step
        ask(engine, "0", prompt)
        engine.step()
        assert scheduler.running[0].computed == cut
        scheduler._budget = 2048
        assert list(finish(engine)["0"].outputs[0].token_ids) == expected


def test_request_that_is_preempted_at_every_step_gets_the_same_tokens(qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder)
    for number, prompt in enumerate(PROMPTS):
        ask(engine, str(number), prompt)
    last = {}
    for _ in range(10 * len(PROMPTS) * NEW_TOKENS):
        for output in engine.step():
            last[output.request_id] = output
        if not engine.has_unfinished_requests():
            break
        scheduler_of(engine).preempt_all()
    for number, prompt in enumerate(PROMPTS):
        check_greedy(model, prompt, list(last[str(number)].outputs[0].token_ids))
    check_free(engine)


def test_request_that_resumes_after_any_token_gets_the_same_tokens(qwen, finish: Finish) -> None:
    folder, _ = qwen
    engine = start(folder)
    (whole,) = greedy(engine, finish, [PROMPTS[3]], max_tokens=40)
    resumed = [[*PROMPTS[3], *whole[:count]] for count in range(1, 40)]
    for prompt in resumed:
        (rest,) = greedy(engine, finish, [prompt], max_tokens=1)
        assert rest == whole[len(prompt) - len(PROMPTS[3]) :][:1]


@pytest.mark.parametrize("lost", ["states", "blocks"])
def test_prefix_is_computed_again_where_its_states_or_its_blocks_are_evicted(
    lost: str, qwen, finish: Finish
) -> None:
    folder, _ = qwen
    engine = start(folder)
    expected = greedy(engine, finish, PROMPTS)
    table = scheduler_of(engine).table
    assert table.state_kind is not None
    pool = table.pool_of[table.state_kind] if lost == "states" else table.whole_pool
    pool.free(pool.allocate(pool.num_free))
    assert greedy(engine, finish, PROMPTS) == expected
    check_free(engine)


def test_aborted_request_leaves_a_point_to_go_on_from(qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder)
    ask(engine, "0", PROMPTS[-1], max_tokens=60)
    written: list[int] = []
    while len(written) < 40:
        for output in engine.step():
            written = list(output.outputs[0].token_ids)
    engine.abort_request(["0"])
    finish(engine)
    ask(engine, "1", [*PROMPTS[-1], *written])
    output = finish(engine)["1"]
    assert output.num_cached_tokens == 64  # of 80 tokens, one of which is always computed
    check_greedy(model, [*PROMPTS[-1], *written], list(output.outputs[0].token_ids))


def test_choices_compute_their_prompt_once(qwen, finish: Finish) -> None:
    folder, _ = qwen
    engine = start(folder, max_num_batched_tokens=256)
    scheduler = scheduler_of(engine)
    prompt = (PROMPTS[-1] * 3)[:100]
    ask(engine, "0", prompt, n=8, temperature=1.0, seed=3)
    computed = 0
    while engine.has_unfinished_requests():
        engine.step()
        computed += sum(one.num_tokens for one in engine._core._batch)
    # The second choice goes on from the state that is kept 8 tokens or more before the prompt's end, and leaves one
    # where the blocks of the first one end, which the others go on from.
    assert computed == 100 + (100 - 80) + 6 * (100 - 96) + 8 * (NEW_TOKENS - 1)
    check_free(engine)
    assert scheduler.table.state_kind == 1


@pytest.mark.parametrize(("length", "cached"), [(100, 80), (40, 32), (24, 16), (16, 0), (8, 0)])
def test_repeated_prompt_goes_on_from_the_last_block_eight_tokens_before_its_end(
    length: int, cached: int, qwen, finish: Finish
) -> None:
    folder, _ = qwen
    engine = start(folder)
    prompt = (PROMPTS[-1] * 3)[:length]
    ask(engine, "0", prompt, max_tokens=1)
    finish(engine)
    ask(engine, "1", prompt, max_tokens=1)
    assert finish(engine)["1"].num_cached_tokens == cached


@pytest.mark.parametrize("together", [False, True])
def test_common_beginning_is_computed_twice_and_then_found(together: bool, qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder, num_gpu_blocks_override=200, max_num_batched_tokens=512)
    common = (PROMPTS[-1] * 2)[:70]
    prompts = [[*common, *[place % 50 + 3] * 20] for place in range(12)]
    if together:
        outputs = []
        for place, prompt in enumerate(prompts):
            ask(engine, str(place), prompt)
        last = finish(engine)
        outputs = [last[str(place)] for place in range(len(prompts))]
    else:
        outputs = []
        for place, prompt in enumerate(prompts):
            ask(engine, str(place), prompt)
            outputs.append(finish(engine)[str(place)])
    assert [one.num_cached_tokens for one in outputs] == [0, 0, *[64] * 10]
    for prompt, output in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, list(output.outputs[0].token_ids))


def test_states_that_rows_leave_behind_replace_those_before_them(qwen, finish: Finish) -> None:
    folder, _ = qwen
    engine = start(folder)
    greedy(engine, finish, [PROMPTS[-1]], max_tokens=60)
    pool = scheduler_of(engine).table.pools[1]
    # One that is 8 tokens or more before the prompt's end, and the row's latest.
    assert pool.num_free - len(pool.blank_blocks) == 2


def test_nan_in_a_state_ends_its_request_alone(qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder)
    for number, prompt in enumerate(PROMPTS[3:]):
        ask(engine, str(number), prompt, max_tokens=30)
    engine.step()
    engine.step()
    scheduler = scheduler_of(engine)
    second, table = scheduler.running[1], scheduler.table
    slot = table.ids[1, second.row, (second.computed - 1) // table.block_size]
    states_of(engine).tensors[1][slot] = torch.nan
    last = finish(engine)
    assert [last[str(number)].outputs[0].finish_reason for number in range(3)] == [
        "length",
        "error",
        "length",
    ]
    for number in (0, 2):
        check_greedy(model, PROMPTS[3 + number], list(last[str(number)].outputs[0].token_ids))
    check_free(engine)
    (output,) = greedy(engine, finish, [PROMPTS[4]])
    check_greedy(model, PROMPTS[4], output)


def test_request_waits_while_all_states_are_taken(qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder, num_state_slots=2)
    running = []
    for number, prompt in enumerate(PROMPTS):
        ask(engine, str(number), prompt)
    last = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            last[output.request_id] = output
        running.append(len(scheduler_of(engine).running))
    assert max(running) == 2
    for number, prompt in enumerate(PROMPTS):
        check_greedy(model, prompt, list(last[str(number)].outputs[0].token_ids))


def test_sleep_frees_the_states(qwen, finish: Finish) -> None:
    folder, model = qwen
    engine = start(folder)
    greedy(engine, finish, PROMPTS)
    engine.sleep()
    assert all(one.numel() == 0 for one in states_of(engine).tensors)
    engine.wake_up()
    for prompt, output in zip(PROMPTS, greedy(engine, finish, PROMPTS), strict=True):
        check_greedy(model, prompt, output)


@pytest.mark.parametrize("family", tiered(FAMILIES, "Qwen3_5ForCausalLM", more=FAMILIES))
def test_ranks_compute_the_same_tokens_where_transformers_has_a_plan(
    family: str, tmp_path: Path, finish: Finish
) -> None:
    model = save_recurrent(family, tmp_path)
    options = {"tensor_parallel_size": 2, "device": "cpu", "max_num_batched_tokens": 16}
    if not model.config.base_model_tp_plan:  # some have one from a later release on
        with pytest.raises(ValueError, match=f"{family} has no tp_plan"):
            start(tmp_path, **options)
        return
    engine = start(tmp_path, **options)
    for prompt, output in zip(PROMPTS, greedy(engine, finish, PROMPTS), strict=True):
        check_greedy(model, prompt, output)


@pytest.mark.parametrize(
    "speculative", [{"method": "ngram", "num_speculative_tokens": 2}], ids=lambda one: one["method"]
)
def test_speculation_is_refused(speculative: dict[str, Any], qwen) -> None:
    folder, _ = qwen
    with pytest.raises(ValueError, match="Qwen3_5ForCausalLM has recurrent layers"):
        start(folder, speculative_config=speculative)
