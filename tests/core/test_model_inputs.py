"""The host's work for a step, which depends on the step's tokens and not on the lengths of the contexts."""

import tracemalloc

import pytest
import torch

from engine_server.config import SchedulerConfig
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.distributed.runner_calls import CallEncoder
from engine_server.core.model_inputs import ModelInputs, model_inputs
from engine_server.core.scheduling.batch import Batch, sampled_part
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.core.span import Span
from engine_server.modeling.cache.spec import FULL
from engine_server.modeling.graphs.staging import Staging
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.requests.sampling_params import SamplingParams

BLOCK_SIZE = 16
LONG_CONTEXT = 131_000
NUM_DECODES = 256
ROWS = NUM_DECODES + 1
MAX_TOKENS = 132_000


def add(scheduler: Scheduler, name: str, num_tokens: int) -> None:
    scheduler.add(GenerationRequest(name, [3] * num_tokens, num_tokens, SamplingParams(), 1000))


def finish(scheduler: Scheduler, batch: Batch) -> None:
    scheduler.update(batch, [StepResult([7])] * len(sampled_part(batch)))


@pytest.fixture
def scheduler() -> Scheduler:
    """Return a scheduler with one long context among many short ones, and no prompt computed."""
    table = BlockTable([BlockPool(12_000)], ROWS, MAX_TOKENS, BLOCK_SIZE, [FULL])
    config = SchedulerConfig(max_num_batched_tokens=200_000, max_num_seqs=ROWS, enable_chunked_prefill=True)
    scheduler = Scheduler(config, table, [], False, lambda block_ids: None)
    add(scheduler, "long", LONG_CONTEXT)
    for number in range(NUM_DECODES):
        add(scheduler, f"short {number}", 5)
    return scheduler


def message_bytes(inputs: ModelInputs) -> int:
    return len(CallEncoder().encode("forward", (inputs,)))


def test_decode_step_sends_other_ranks_no_block_table(scheduler: Scheduler) -> None:
    batch = scheduler.schedule()
    model_inputs(batch, scheduler.table, False)
    finish(scheduler, batch)
    batch = scheduler.schedule()
    inputs, _ = model_inputs(batch, scheduler.table, False)
    assert len(batch) == ROWS
    assert message_bytes(inputs) < 100 * ROWS


def test_decode_step_copies_no_block_table(scheduler: Scheduler) -> None:
    staging = Staging(200_000, 200_000, scheduler.table.ids.shape, CpuPlatform())
    batch = scheduler.schedule()
    inputs, _ = model_inputs(batch, scheduler.table, False)
    staging.put(inputs.step, inputs.sampling, None, inputs.table_changes)
    finish(scheduler, batch)
    batch = scheduler.schedule()
    tracemalloc.start()
    inputs, _ = model_inputs(batch, scheduler.table, False)
    staging.put(inputs.step, inputs.sampling, None, inputs.table_changes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < scheduler.table.ids.nbytes / 10


def test_only_prefill_of_a_prompt_embeds_request_is_eager() -> None:
    table = BlockTable([BlockPool(40)], 4, 64, BLOCK_SIZE, [FULL])
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, enable_chunked_prefill=True)
    scheduler = Scheduler(config, table, [], False, lambda block_ids: None)
    embedded = GenerationRequest("embedded", [0] * 12, 12, SamplingParams(), 6)
    embedded.prompt_spans = [Span.of(0, torch.arange(24.0).view(12, 2), "digest")]
    scheduler.add(embedded)
    add(scheduler, "tokens", 1)
    steps = []
    for _ in range(4):
        batch = scheduler.schedule()
        inputs, _ = model_inputs(batch, table, False)
        steps.append((inputs.is_plain_decode, [span.length for span in inputs.embeds]))
        finish(scheduler, batch)
    assert steps == [(False, [8]), (False, [4]), (True, []), (True, [])]


def test_recomputed_prompt_embeds_end_where_the_output_begins() -> None:
    table = BlockTable([BlockPool(40)], 4, 64, BLOCK_SIZE, [FULL])
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, enable_chunked_prefill=True)
    scheduler = Scheduler(config, table, [], False, lambda block_ids: None)
    embedded = GenerationRequest("embedded", [0] * 12, 12, SamplingParams(), 6)
    embedded.prompt_spans = [Span.of(0, torch.arange(24.0).view(12, 2), "digest")]
    scheduler.add(embedded)
    finish(scheduler, scheduler.schedule())
    scheduler.preempt_all()
    [scheduled] = batch = scheduler.schedule()
    inputs, _ = model_inputs(batch, table, False)
    assert scheduled.num_tokens == 13
    assert [(span.start, span.length) for span in inputs.embeds] == [(0, 12)]
