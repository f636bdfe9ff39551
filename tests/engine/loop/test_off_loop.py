"""Work that would stall the event loop: long prompts, many log-probabilities, garbage collection."""

import asyncio
import gc
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio
from waiting import until_async

from engine_server import AsyncEngineArgs, AsyncLLMEngine, SamplingParams, StatLoggerBase
from engine_server.engine.front_end import FrontEnd
from engine_server.engine.loop import request_streams
from engine_server.engine.loop.core_process import CoreProcess
from engine_server.engine.output.request_state import GenerationState

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.more]
# Of messages: those of 4,096 log-probabilities, with room for their ids and ranks.
BYTES_PER_TURN = 16 * 4096


class StallRecorder(StatLoggerBase):
    def __init__(self) -> None:
        self.stalls: list[float] = []

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        self.stalls += iteration_stats.event_loop_stalls

    def log_engine_initialized(self) -> None:
        pass


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recorder() -> StallRecorder:
    return StallRecorder()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def held(tiny_writer: Path, recorder: StallRecorder) -> list[AsyncLLMEngine]:
    """Return an engine in the only lasting reference to it, which the last test drops."""
    arguments = AsyncEngineArgs(
        model=str(tiny_writer),
        dtype="float32",
        num_gpu_blocks_override=64,
        max_logprobs=90,
        disable_log_stats=True,
    )
    return [
        await asyncio.to_thread(
            AsyncLLMEngine.from_engine_args, arguments, stat_loggers={"recorder": recorder}
        )
    ]


@pytest.fixture
def engine(held: list[AsyncLLMEngine]) -> AsyncLLMEngine:
    return held[0]


async def last_output(engine: AsyncLLMEngine, prompt: Any, request_id: str, **options: Any) -> Any:
    params = SamplingParams(temperature=0, ignore_eos=True, **options)
    return [output async for output in engine.generate(prompt, params, request_id)][-1]


def record_threads(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> dict[Any, bool]:
    """Record for each call, by its request's id or its number, if it ran on the event loop's thread."""
    threads: dict[Any, bool] = {}
    original = getattr(owner, method)

    def recorded(self: Any, argument: Any, *others: Any) -> Any:
        threads[getattr(argument, "request_id", len(threads))] = (
            threading.current_thread() is threading.main_thread()
        )
        return original(self, argument, *others)

    monkeypatch.setattr(owner, method, recorded)
    return threads


async def test_long_prompts_are_tokenized_in_a_thread(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_streams, "MAX_INLINE", 100)
    on_loop = record_threads(monkeypatch, FrontEnd, "prepare")
    long, short = "import pytest " * 10, "import pytest"
    first = await last_output(engine, long, "long", max_tokens=2)
    assert first.finished and first.prompt == long
    assert (await last_output(engine, short, "short", max_tokens=2)).finished
    assert on_loop == {"long": False, "short": True}


async def test_many_bad_words_are_tokenized_in_a_thread(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = record_threads(monkeypatch, FrontEnd, "prepare")
    words = [f"word{number}" for number in range(400)]
    assert (await last_output(engine, "import", "many", max_tokens=1, bad_words=words)).finished
    assert (await last_output(engine, "import", "few", max_tokens=1, bad_words=words[:3])).finished
    assert on_loop == {"many": False, "few": True}


async def test_short_prompts_are_tokenized_in_the_thread_while_a_long_one_is(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer in use blocks a change of its settings, which another prompt may need."""
    monkeypatch.setattr(request_streams, "MAX_INLINE", 100)
    on_loop = record_threads(monkeypatch, FrontEnd, "prepare")
    await asyncio.gather(
        last_output(engine, "import pytest " * 10, "long", max_tokens=2),
        last_output(engine, "import pytest", "short", max_tokens=2),
        last_output(engine, {"prompt_token_ids": [5, 6]}, "ids", max_tokens=2),
    )
    assert on_loop == {"long": False, "short": False, "ids": True}


async def test_prompt_logprobs_arrive_in_parts_with_turns_of_the_loop_between(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    received: Counter[int] = Counter()
    receive = CoreProcess.receive

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def counted(self: CoreProcess) -> Any:
        message = await receive(self)
        received[turn] += len(msgspec.msgpack.encode(message))
        return message

    monkeypatch.setattr(CoreProcess, "receive", counted)
    counting = asyncio.create_task(count_turns())
    prompt = [7 + number % 90 for number in range(200)]
    last = await last_output(engine, {"prompt_token_ids": prompt}, "long", max_tokens=2, prompt_logprobs=90)
    counting.cancel()
    assert sum(received.values()) > 3 * BYTES_PER_TURN > 3 * max(received.values())
    first, *others = last.prompt_logprobs
    assert first is None and [token in found for token, found in zip(prompt[1:], others, strict=True)]


async def test_failed_logprobs_conversion_ends_its_request_alone(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GenerationState, "add_prompt_logprobs", lambda self, tokens: 1 / 0)
    prompt = {"prompt_token_ids": [7] * 100}
    failed, sound = await asyncio.gather(
        last_output(engine, prompt, "fails", max_tokens=12, prompt_logprobs=5),
        last_output(engine, prompt, "lives", max_tokens=12),
    )
    assert failed.outputs[0].finish_reason == "error" and "ZeroDivisionError" in failed.outputs[0].stop_reason
    assert sound.outputs[0].finish_reason == "length"
    assert engine.get_num_unfinished_requests() == 0


async def test_request_aborted_between_parts_of_logprobs_is_removed(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, aborts = GenerationState.add_prompt_logprobs, []

    def add_and_abort(self: GenerationState, tokens: Any) -> None:
        add(self, tokens)
        aborts.append(asyncio.ensure_future(engine.abort("goes")))

    monkeypatch.setattr(GenerationState, "add_prompt_logprobs", add_and_abort)
    prompt = {"prompt_token_ids": [7] * 200}
    last = await last_output(engine, prompt, "goes", max_tokens=12, prompt_logprobs=90)
    assert last.outputs[0].finish_reason == "abort" and last.prompt_logprobs is None
    assert len(aborts) == 1
    assert (await last_output(engine, "text", "goes", max_tokens=3)).outputs[0].finish_reason == "length"


async def test_stalls_of_the_event_loop_are_recorded_under_load(
    engine: AsyncLLMEngine, recorder: StallRecorder
) -> None:
    recorder.stalls.clear()
    while not recorder.stalls:
        await last_output(engine, "text", "load", max_tokens=60)
    assert all(stall >= 0 for stall in recorder.stalls)


async def test_objects_loaded_at_the_start_are_excluded_from_garbage_collection(
    engine: AsyncLLMEngine,
) -> None:
    assert not any(tracked is engine.tokenizer for tracked in gc.get_objects())
    assert gc.get_threshold()[0] >= 10_000
    assert gc.isenabled()


async def test_core_ends_when_its_engine_is_garbage_collected(held: list[AsyncLLMEngine]) -> None:
    core = psutil.Process(held[0].core_pid)
    held.clear()
    await until_async(lambda: gc.collect() is not None and not core.is_running())
