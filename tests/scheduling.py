"""Schedulers without a model, for tests of the scheduler."""

from engine_server.config import CacheConfig, SchedulerConfig
from engine_server.config.scheduler import SchedulingPolicy
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.batch import Batch, sampled_part
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.cache.kv_cache import pool_sizes
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.cache.spec import FULL, CacheSpec, LayerShape
from engine_server.requests.messages import RequestStep
from engine_server.requests.sampling_params import SamplingParams

BLOCK = 4
LONGEST = 40  # prompt and output together
EOS = 99


def make(
    num_blocks: int,
    budget: int,
    seats: int,
    chunked: bool = True,
    specs: tuple[CacheSpec, ...] = (FULL,),
    caching: bool = True,
    pools: tuple[int, ...] = (),
    policy: SchedulingPolicy = "fcfs",
    block_size: int = BLOCK,
    longest: int = LONGEST,
    **limits: float,
) -> Scheduler:
    """Return a scheduler whose kinds, those of `specs`, share a pool or have those of `pools`."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget, max_num_seqs=seats, enable_chunked_prefill=chunked, policy=policy, **limits,
    )  # fmt: skip
    cache = CacheConfig(
        block_size=block_size, gpu_memory_utilization=0.9, kv_cache_memory_bytes=None, num_gpu_blocks_override=None,
        enable_prefix_caching=caching,
    )  # fmt: skip
    numbers = list(pools or [0] * len(specs))
    shapes = [LayerShape(1, 8, 8)] * len(set(numbers))
    layout = Layout(list(specs), numbers, list(range(len(specs))), numbers, shapes)
    sizes = [BlockPool(size) for size in pool_sizes(cache, config, layout, num_blocks)]
    table = BlockTable([sizes[pool] for pool in layout.pools], seats, longest, block_size, specs)
    return Scheduler(config, table, [EOS], caching, lambda block_ids: None)


def request(name: str, prompt: int, output: int) -> GenerationRequest:
    return GenerationRequest(name, list(range(prompt)), prompt, SamplingParams(max_tokens=output), output)


def run(scheduler: Scheduler, batch: Batch) -> list[RequestStep]:
    return scheduler.update(batch, [StepResult([7])] * len(sampled_part(batch)))
