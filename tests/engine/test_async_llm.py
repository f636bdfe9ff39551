"""The asynchronous engine: streams, aborts, sleep, and the death of its core."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from adapters import greedy, save_prompt
from async_engines import Watcher, drain, make, prompt
from tiers import tiered
from transformers import LlamaForCausalLM
from waiting import until_async

from engine_server import (
    AsyncLLMEngine,
    BeamSearchParams,
    EngineDeadError,
    InvalidRequestError,
    PromptAdapterRequest,
    RequestOutputKind,
    SamplingParams,
)
from engine_server.contract.base.caller import ReportedCaller
from engine_server.requests.submission import Origin, Submission

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def second(tiny_llama: Path) -> AsyncIterator[AsyncLLMEngine]:
    """Return a second engine, for the tests that stop it, hang it and kill its core, in the order of this file."""
    engine = await asyncio.to_thread(make, tiny_llama, hang_timeout=1.0, start_engine_loop=False)
    yield engine
    engine.shutdown()


async def test_deltas_and_cumulative_outputs_hold_the_same_tokens(tiny: AsyncLLMEngine, tiny_params) -> None:
    async def collect(kind: RequestOutputKind) -> list:
        params = tiny_params(max_tokens=20, seed=5, ignore_eos=True, output_kind=kind)
        return [output async for output in tiny.generate(prompt(30), params, kind.name)]

    cumulative, delta, final = await asyncio.gather(*(collect(kind) for kind in RequestOutputKind))
    assert [token for output in delta for token in output.outputs[0].token_ids] == final[0].outputs[
        0
    ].token_ids
    assert cumulative[-1].outputs[0].token_ids == final[0].outputs[0].token_ids
    assert len(final) == 1 and final[0].finished


async def test_callers_read_only_cached_prompts_of_their_scope(tiny: AsyncLLMEngine, tiny_params) -> None:
    async def cached(scope: str | None) -> int | None:
        caller = None if scope is None else ReportedCaller("a" * 32, scope, 0)
        tokens = {"prompt_token_ids": [9] * 40}
        submission = Submission("scoped", tokens, tiny_params(max_tokens=1), origin=Origin(caller=caller))
        (output,) = await drain(tiny.outputs(submission))
        return output.num_cached_tokens

    one, other = "1" * 32, "2" * 32
    assert [await cached(scope) for scope in (one, other, one, None, None)] == [0, 0, 32, 0, 32]


async def test_deltas_of_several_completions_are_merged_when_the_reader_is_slow(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    def params(kind: RequestOutputKind) -> SamplingParams:
        return tiny_params(
            n=3,
            max_tokens=30,
            seed=6,
            logprobs=0,
            prompt_logprobs=0,
            output_kind=kind,
            stop_token_ids=list(range(2, 128, 3)),
            min_tokens=3,
        )

    (whole,) = await drain(tiny.generate(prompt(30), params(RequestOutputKind.FINAL_ONLY), "whole"))
    assert len({len(one.token_ids) for one in whole.outputs}) > 1
    slow = tiny.generate(prompt(30), params(RequestOutputKind.DELTA), "slow")
    first = await anext(slow)
    await until_async(lambda: watcher.idle and len(watcher.finished) == 6)
    rest = await drain(slow)
    assert len(rest) <= 1  # none if the reader was already slow to take the first
    assert first.prompt_logprobs == whole.prompt_logprobs and all(one.prompt_logprobs is None for one in rest)
    for one in whole.outputs:
        pieces = [piece for output in (first, *rest) for piece in output.outputs if piece.index == one.index]
        assert [token for piece in pieces for token in piece.token_ids] == one.token_ids
        assert [list(entry) for piece in pieces for entry in piece.logprobs] == [*map(list, one.logprobs)]
        assert pieces[-1].finish_reason == one.finish_reason


async def test_abort_ends_every_completion_of_a_request(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    params = tiny_params(n=3, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    stream = tiny.generate(prompt(20), params, "several")
    await anext(stream)
    assert tiny.get_num_unfinished_requests() == 1
    await tiny.abort("several")
    last = (await drain(stream))[-1]
    assert last.finished and [one.finish_reason for one in last.outputs] == ["abort"] * 3
    await until_async(lambda: watcher.idle)


async def test_resumed_request_continues_after_the_given_tokens(tiny: AsyncLLMEngine, tiny_params) -> None:
    params = tiny_params(max_tokens=6, seed=5, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    whole = [
        token
        for one in await drain(tiny.generate(prompt(9), params, "a"))
        for token in one.outputs[0].token_ids
    ]
    for count in (2, 6):  # after 6 tokens it has ended
        resumed = tiny.generate(prompt(9) | {"resume_token_ids": whole[:count]}, params, "b")
        outputs = await drain(resumed)
        assert whole[count:] == [token for one in outputs for token in one.outputs[0].token_ids]
        assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "length"
    assert tiny.get_num_unfinished_requests() == 0


async def test_beam_search_runs_concurrently_with_other_requests(tiny: AsyncLLMEngine, tiny_params) -> None:
    """Its best sequence is at least as likely as the greedy one."""
    params = tiny_params(temperature=0, max_tokens=5, logprobs=0, ignore_eos=True)
    (found,), greedy = await asyncio.gather(
        drain(tiny.beam_search(prompt(9), "beams", BeamSearchParams(3, 5, ignore_eos=True))),
        drain(tiny.generate(prompt(9), params, "greedy")),
    )
    assert found.finished and found.request_id == "beams" and len(found.outputs) == 3
    assert found.outputs[0].cumulative_logprob >= greedy[-1].outputs[0].cumulative_logprob - 1e-4
    assert all(len(one.token_ids) == 5 and one.finish_reason == "length" for one in found.outputs)


async def test_beam_search_ends_at_its_deadline_with_the_beams_so_far(tiny: AsyncLLMEngine) -> None:
    found = await tiny.search("late", prompt(9), BeamSearchParams(3, 200, ignore_eos=True), Origin(), 1e-6)
    assert [(one.text, one.finish_reason) for one in found.outputs] == [("", "timeout")]
    assert found.finished and tiny.get_num_unfinished_requests() == 0


async def test_prompt_adapters_serve_generation_and_beam_search(
    tiny: AsyncLLMEngine, tiny_llama: Path, tiny_params, tmp_path: Path
) -> None:
    model, count = LlamaForCausalLM.from_pretrained(tiny_llama), 5
    folder = save_prompt(model, tmp_path / "adapter", 1, "PROMPT_TUNING", count)
    adapter = PromptAdapterRequest("adapter", 1, str(folder), count)
    assert await tiny.add_prompt_adapter(adapter)
    assert await tiny.list_prompt_adapters() == {1}
    params = tiny_params(temperature=0, max_tokens=6, ignore_eos=True)
    outputs = await drain(tiny.generate(prompt(9), params, "one", prompt_adapter_request=adapter))
    generated = outputs[-1].outputs[0].token_ids
    assert generated == greedy(model, None, prompt(9)["prompt_token_ids"], 6, prompt_adapter=folder)
    search = BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True)
    (found,) = await drain(tiny.beam_search(prompt(9), "two", search, prompt_adapter_request=adapter))
    assert found.outputs[0].token_ids == generated
    room = 256 - count
    long = tiny.beam_search(prompt(room - 2), "three", search, prompt_adapter_request=adapter)
    (found,) = await drain(long)
    assert len(found.outputs[0].token_ids) == 2
    with pytest.raises(InvalidRequestError, match=f"after {count} virtual tokens"):
        await anext(tiny.beam_search(prompt(room), "four", search, prompt_adapter_request=adapter))
    assert await tiny.remove_prompt_adapter(1)


async def test_aborted_stream_ends_with_the_reason_abort(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    outputs = []
    async for output in tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "one"):
        outputs.append(output)
        if len(outputs) == 3:
            await tiny.abort("one")
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
    assert not any(output.finished for output in outputs[:-1])
    await tiny.abort("unknown")
    await until_async(lambda: watcher.idle)


async def test_request_is_aborted_when_its_caller_stops_iterating(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    async for _ in (
        stream := tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "left")
    ):
        break
    await stream.aclose()
    task = asyncio.create_task(anext(tiny.generate(prompt(200), tiny_params(max_tokens=40), "cancelled")))
    await until_async(lambda: tiny.get_num_unfinished_requests() == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_async(lambda: watcher.idle and watcher.finished == ["abort", "abort"])
    assert tiny.get_num_unfinished_requests() == 0


@pytest.mark.more
async def test_random_requests_and_aborts_leave_no_request_in_the_core(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    choose = random.Random(1)
    ends = []

    async def request(number: int) -> None:
        params = tiny_params(max_tokens=choose.randrange(1, 40), ignore_eos=True)
        leaves_after = choose.randrange(1, 80)
        stream = tiny.generate(prompt(choose.randrange(1, 120)), params, number)
        count = 0
        async for output in stream:
            count += 1
            if output.finished:
                ends.append(output.outputs[0].finish_reason)
            elif count == leaves_after:
                await stream.aclose() if choose.random() < 0.5 else await tiny.abort(str(number))

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(request(number))
            if choose.random() < 0.3:
                await asyncio.sleep(0)
    assert set(ends) == {"length", "abort"}
    assert tiny.get_num_unfinished_requests() == 0
    await until_async(lambda: watcher.idle)


async def test_invalid_requests_raise_before_anything_is_queued(tiny: AsyncLLMEngine, tiny_params) -> None:
    with pytest.raises(InvalidRequestError, match=r"256 tokens.* 300 tokens"):
        await anext(tiny.generate(prompt(300), tiny_params(), "long"))
    first = tiny.generate(prompt(3), tiny_params(max_tokens=200, ignore_eos=True), "same")
    await anext(first)
    with pytest.raises(InvalidRequestError, match="'same' is in flight"):
        await anext(tiny.generate(prompt(3), tiny_params(), "same"))
    await first.aclose()
    assert tiny.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("level", tiered([1, 2], 2, more=[1]))
async def test_requests_continue_after_sleep_and_wake_up(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params, level: int
) -> None:
    params = tiny_params(max_tokens=200, ignore_eos=True, seed=1)
    whole = (await drain(tiny.generate(prompt(40), params, "whole")))[-1].outputs[0].token_ids
    stream = tiny.generate(prompt(40), params, "interrupted")
    await anext(stream)
    await tiny.sleep(level)
    assert await tiny.is_sleeping()
    late = asyncio.create_task(drain(tiny.generate(prompt(40), params, "late")))
    await until_async(lambda: watcher.latest.num_waiting == 2)
    assert watcher.latest.sleep_level == level and watcher.latest.kv_cache_usage == 0
    await tiny.wake_up(["weights"])
    assert await tiny.is_sleeping()
    await tiny.wake_up(["kv_cache"])
    assert not await tiny.is_sleeping()
    assert (await drain(stream))[-1].outputs[0].token_ids == whole
    assert (await late)[-1].outputs[0].token_ids == whole


async def test_request_with_the_id_of_an_aborted_request_gets_none_of_its_output(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    params = tiny_params(temperature=0, max_tokens=6, ignore_eos=True)
    (expected,) = (await drain(tiny.generate(prompt(9), params, "alone")))[-1].outputs
    for _ in range(20):
        endless = tiny_params(seed=1, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        old = tiny.generate({"prompt_token_ids": [11, 5]}, endless, "same id")
        await anext(old)
        await tiny.abort("same id")
        (reused,) = (await drain(tiny.generate(prompt(9), params, "same id")))[-1].outputs
        assert reused.token_ids == expected.token_ids
        await old.aclose()
    await until_async(lambda: watcher.idle)


async def test_beam_search_that_fails_leaves_no_request(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    """One beam's request id is in use, so that the beam is refused."""
    taken = tiny.generate(prompt(9), tiny_params(max_tokens=200, ignore_eos=True), "beams-1")
    await anext(taken)
    with pytest.raises(InvalidRequestError, match="'beams-1' is in flight"):
        await drain(tiny.beam_search(prompt(9), "beams", BeamSearchParams(3, 5, ignore_eos=True)))
    assert tiny.get_num_unfinished_requests() == 1
    await taken.aclose()
    await until_async(lambda: watcher.idle)


async def test_core_keeps_serving_after_sigterm(tiny: AsyncLLMEngine, tiny_params) -> None:
    """A service manager sends SIGTERM to the whole process group; the parent drains first."""
    os.kill(tiny.core_pid, signal.SIGTERM)
    params = tiny_params(max_tokens=20, ignore_eos=True)
    assert (await drain(tiny.generate(prompt(20), params, "drained")))[-1].outputs[
        0
    ].finish_reason == "length"
    await tiny.check_health()


@pytest.mark.parametrize("awake", ["weights", "kv_cache"])
@pytest.mark.parametrize(
    "levels",
    [pytest.param((1, 1), marks=pytest.mark.more), (1, 2), pytest.param((2, 1), marks=pytest.mark.more)],
)
async def test_sleep_after_a_partial_wake_frees_everything_again(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params, awake: str, levels: tuple[int, int]
) -> None:
    params = tiny_params(max_tokens=8, ignore_eos=True, seed=1)
    whole = (await drain(tiny.generate(prompt(40), params, "whole")))[-1].outputs[0].token_ids
    first, second = levels
    await tiny.sleep(first)
    await tiny.wake_up([awake])
    await tiny.sleep(second)
    other = ({"weights", "kv_cache"} - {awake}).pop()
    await tiny.wake_up([other])
    assert await tiny.is_sleeping()  # otherwise the awake part was not put to sleep again
    await tiny.wake_up()
    assert (await drain(tiny.generate(prompt(40), params, "again")))[-1].outputs[0].token_ids == whole


async def test_operations_refuse_invalid_arguments_by_name(tiny: AsyncLLMEngine) -> None:
    with pytest.raises(RuntimeError, match=r"sleep: level is 3; allowed are 1 and 2"):
        await tiny.sleep(3)
    with pytest.raises(RuntimeError, match=r"wake_up: there is no tag cache; tags are kv_cache, weights"):
        await tiny.wake_up(["cache"])


async def test_failed_operation_raises_its_cause_and_the_engine_keeps_serving(tiny: AsyncLLMEngine) -> None:
    with pytest.raises(RuntimeError, match=r"start_profile: .*torch_profiler_dir"):
        await tiny.start_profile()
    await tiny.check_health()


async def test_stat_loggers_can_be_added_and_removed(tiny: AsyncLLMEngine, tiny_params) -> None:
    second = Watcher()
    tiny.add_logger("second", second)
    with pytest.raises(KeyError, match="'second' already exists"):
        tiny.add_logger("second", Watcher())
    await drain(tiny.generate(prompt(3), tiny_params(max_tokens=1), "seen"))
    tiny.remove_logger("second")
    await drain(tiny.generate(prompt(3), tiny_params(max_tokens=1), "unseen"))
    assert len(second.finished) == 1


async def test_requests_need_the_loop_when_it_is_not_started_automatically(
    second: AsyncLLMEngine, tiny_params
) -> None:
    with pytest.raises(RuntimeError, match="start_background_loop"):
        await anext(second.generate(prompt(3), tiny_params(), "early"))
    second.start_background_loop()
    assert second.is_running and not second.is_stopped
    assert (await anext(second.generate(prompt(3), tiny_params(), "late"))).request_id == "late"
    with pytest.raises(RuntimeError, match="background loop"):
        await second.engine_step()


async def test_engine_step_continues_requests_after_the_loop_was_stopped(
    second: AsyncLLMEngine, tiny_params
) -> None:
    stream = second.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "by hand")
    await anext(stream)
    second.shutdown_background_loop()
    assert not second.is_running
    while await second.engine_step():
        pass
    assert len((await anext(stream)).outputs[0].token_ids) == 200
    second.start_background_loop()


async def test_check_health_reports_a_hung_core_until_it_recovers(
    second: AsyncLLMEngine, tiny_params
) -> None:
    async def hung() -> bool:
        try:
            await second.check_health()
        except EngineDeadError as error:
            assert "no progress" in str(error)
            return True
        return False

    async def well() -> bool:
        return not await hung()

    os.kill(second.core_pid, signal.SIGSTOP)
    await until_async(hung)
    assert not second.errored
    os.kill(second.core_pid, signal.SIGCONT)
    await until_async(well)
    assert (await drain(second.generate(prompt(3), tiny_params(max_tokens=2), "on")))[-1].finished


async def test_every_stream_raises_the_cause_when_the_core_is_killed(
    second: AsyncLLMEngine, tiny_params
) -> None:
    """The last test of the second engine, since it is dead afterwards."""
    streams = [
        second.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), name) for name in "abc"
    ]
    await asyncio.gather(*(anext(stream) for stream in streams))
    os.kill(second.core_pid, signal.SIGKILL)
    results = await asyncio.gather(*(drain(stream) for stream in streams), return_exceptions=True)
    assert all(isinstance(result, EngineDeadError) and "SIGKILL" in str(result) for result in results)
    assert second.errored and not second.is_running
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await second.check_health()
    with pytest.raises(EngineDeadError):
        await anext(second.generate(prompt(3), tiny_params(), "after"))
